"""`samovar match`: every case through the command, its input in all shapes, its output and exit codes."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from samovar.common.progress import Progress
from samovar.service.cli.main import app
from tests.support.project import ROOT

CASES = sorted((ROOT / "tests" / "cases" / "match").iterdir())

RULE = """
rule: pair
match: |
  sequence by card with maxspan=10m
    [a where true] as first
    [b where true] as second
suppress: 1h
"""


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["match", *map(str, arguments)], input=stdin)


def matches(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def event(type: str, ts: object, **fields: object) -> str:
    return json.dumps({"type": type, "ts": ts, "card": "c1", **fields}) + "\n"


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    path = tmp_path / "pair.yml"
    path.write_text(RULE)
    return path


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


# ---------------------------------------------------------------- the conformance cases


def read_case(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    expected = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines() if line.strip()]
    meta = folder / "meta.json"
    return expected, json.loads(meta.read_text())["args"] if meta.exists() else []


def part_of(match: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    part = {name: match.get(name) for name in expected}
    if "steps" in part:
        part["steps"] = {step: places for step, places in match["steps"].items() if places}
    if "emit" in expected:
        part["emit"] = {name: match["emit"].get(name) for name in expected["emit"]}
    return part


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path) -> None:
    expected, arguments = read_case(folder)
    result = run(folder / "rule.yml", folder / "events.jsonl", *arguments)
    assert result.exit_code == 0, result.stderr
    for one in expected:
        if "steps" in one:
            one["steps"] = {step: places for step, places in one["steps"].items() if places}
    found = matches(result)
    assert [part_of(*pair) for pair in zip(found, expected, strict=False)] == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("folder", CASES[::4], ids=lambda folder: folder.name)
def test_gzip_and_stdin_and_slack_give_the_same(folder: Path, tmp_path: Path) -> None:
    _, arguments = read_case(folder)
    if "--slack" in arguments:
        pytest.skip("has a slack of its own")
    whole = run(folder / "rule.yml", folder / "events.jsonl", *arguments)
    data = (folder / "events.jsonl").read_bytes()
    zipped = tmp_path / "events"  # told by its first bytes, not by its name
    zipped.write_bytes(gzip.compress(data))
    assert run(folder / "rule.yml", zipped, *arguments).stdout_bytes == whole.stdout_bytes
    assert run(folder / "rule.yml", "-", *arguments, stdin=data).stdout_bytes == whole.stdout_bytes
    assert run(folder / "rule.yml", "-", *arguments, stdin=gzip.compress(data)).stdout_bytes == whole.stdout_bytes
    assert run(folder / "rule.yml", folder / "events.jsonl", *arguments, "--slack", "36500d").stdout == whole.stdout


# ---------------------------------------------------------------- lines


def test_bad_lines_are_named_as_an_editor_counts_and_the_others_matched(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + "\nnonsense\n" + event("b", "12") + "   \n" + event("b", 1000) + '{"ts": 1}\n[]')
    result = run(rule, events)
    assert result.exit_code == 3
    assert matches(result)[0]["steps"] == {"first": [0], "second": [5]}
    told = [line.removeprefix(str(events)) for line in result.stderr.splitlines()]
    assert [line.split(":")[1] for line in told[:-1]] == ["3", "4", "7", "8"]
    assert "digits in quotes" in told[1]
    assert "the type field `type` is missing" in told[2]
    assert told[-1] == "2 events, 1 match, 4 bad lines"


def test_byte_order_mark_and_crlf(rule: Path, events: Path) -> None:
    text = (event("a", 0) + event("b", 5)).replace("\n", "\r\n")
    events.write_bytes(b"\xef\xbb\xbf" + text.encode())
    result = run(rule, events)
    assert result.exit_code == 0
    assert len(matches(result)) == 1


def test_no_events_at_all(rule: Path, events: Path) -> None:
    events.write_text("")
    for arguments in ((), ("--slack", "5s"), ("--no-flush",), ("--slack", "5s", "--no-flush")):
        result = run(rule, events, *arguments)
        assert (result.exit_code, result.stdout) == (0, "")


def test_other_field_names(rule: Path, events: Path) -> None:
    lines = [{"kind": "a", "at": "2023-11-14T22:13:20Z", "card": 1}, {"kind": "b", "at": 1_700_000_001_000, "card": 1}]
    events.write_text("\n".join(map(json.dumps, lines)))
    (match,) = matches(run(rule, events, "--type-field", "kind", "--time-field", "at"))
    assert (match["key"], match["start"]) == ({"card": 1}, 1_700_000_000_000)


def test_events_of_one_type_need_no_field_for_it(tmp_path: Path) -> None:
    """As those of `samovar init` are, whose topic says it."""
    folder = tmp_path / "fraud"
    assert CliRunner().invoke(app, ["init", str(folder)]).exit_code == 0
    rules, events = folder / "rules", folder / "events.jsonl"
    without = run(rules, events)
    assert (without.exit_code, without.stdout) == (3, "")
    assert "no event has a type: where all are of one, name it, as in `--type purchase`" in without.stderr
    found = matches(run(rules, events, "--type", "purchase"))
    assert {match["rule"] for match in found} == {"card-testing", "two-countries"}
    assert "c1" in run(rules / "card-testing.yml", events, "--type", "purchase", "--explain", "c1").stdout


# ---------------------------------------------------------------- order, time


def test_lines_in_any_order(rule: Path, events: Path) -> None:
    lines = [event("ab"[n % 2], n * 100, card=f"c{n // 2}") for n in range(400)]
    events.write_text("".join(lines))
    in_order = matches(run(rule, events))
    assert len(in_order) > 50
    places = list(range(400))
    random.Random(3).shuffle(places)
    events.write_text("".join(lines[place] for place in places))
    shuffled = matches(run(rule, events))
    back = [{step: [places[n] for n in taken] for step, taken in match["steps"].items()} for match in shuffled]
    assert back == [match["steps"] for match in in_order]


def test_late_events_are_named_with_how_late(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + event("x", 10_000) + event("b", 3_500) + event("b", 6_000))
    result = run(rule, events, "--slack", "5s")
    assert result.exit_code == 0
    assert f"{events}:3: late by 1500ms beyond the slack of 5s, not matched" in result.stderr
    assert result.stderr.endswith("4 events, 1 match, 1 late\n")
    assert matches(result)[0]["steps"] == {"first": [0], "second": [3]}


@pytest.mark.parametrize("slack", [(), ("--slack", "1s")])
def test_no_flush_keeps_event_time(events: Path, tmp_path: Path, slack: tuple[str, ...]) -> None:
    rule = tmp_path / "quiet.yml"
    rule.write_text("rule: quiet\nmatch: sequence by card with maxspan=1m [a where true] as a ![b where true]\n")
    events.write_text(event("a", 0) + event("x", 60_000, card="c2"))
    assert len(matches(run(rule, events, *slack))) == 1
    assert matches(run(rule, events, "--no-flush", *slack)) == []
    events.write_text(event("a", 0) + event("x", 60_001, card="c2"))
    assert [match["at"] for match in matches(run(rule, events, "--no-flush", *slack))] == [60_000]


def test_no_flush_shows_a_match_at_the_largest_time(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + event("b", 1))
    assert len(matches(run(rule, events, "--no-flush"))) == 1


def test_memory_does_not_grow_with_slack(rule: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for block in range(60):
            file.write(
                "".join(event("x", block * 100_000 + n, card=f"c{n % 50}", pad="x" * 100) for n in range(10_000))
            )
    program = (
        "import re, sys; from pathlib import Path; from samovar.service.cli.main import run; code = run(sys.argv[1:]);"
        # The peak of this program alone: what getrusage tells is handed on from the process that started it.
        r"print(re.search(r'VmHWM:\s+(\d+)', Path('/proc/self/status').read_text())[1], file=sys.stderr);"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "match", "-q", str(rule), str(path), "--slack", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stderr) < 200_000  # KB; the events alone are 100 MB, decoded or not


# ---------------------------------------------------------------- what is shown


def test_suppressed_matches_are_shown_with_all(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + event("b", 1) + event("a", 2) + event("b", 3))
    result = run(rule, events)
    assert [match.get("suppressed") for match in matches(result)] == [None]
    assert "1 match, 1 suppressed" in result.stderr
    assert [match.get("suppressed") for match in matches(run(rule, events, "--all"))] == [None, True]


def test_events_without_a_key_are_counted(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0, card=None) + event("a", 1) + event("b", 2))
    assert run(rule, events).stderr == "3 events, 1 match, 1 without a key for pair\n"
    assert run(rule, events, "--quiet").stderr == ""
    events.write_text(event("a", 1) + event("b", 2))
    assert run(rule, events).stderr == ""


def test_dropped_partials_have_a_line(tmp_path: Path, events: Path) -> None:
    rule = tmp_path / "all.yml"
    rule.write_text(RULE.replace("maxspan=10m", "maxspan=10m, overlap=all, skip=none"))
    events.write_text("".join(event("a", n) for n in range(20)) + event("b", 30))
    result = run(rule, events, "--max-partials", "5", "--all")
    assert len(matches(result)) == 5
    assert "pair: 15 partial matches dropped, the oldest first; --max-partials allows more\n" in result.stderr


def test_dropped_events_have_a_line(tmp_path: Path, events: Path) -> None:
    rule = tmp_path / "many.yml"
    rule.write_text("rule: many\nmatch: aggregate by card over 1h [a where true] having count() > 100\n")
    events.write_text("".join(event("a", n) for n in range(20)))
    assert "many: 10 held events dropped" in run(rule, events, "--max-events", "10").stderr


def test_several_rules_in_files_and_folders(rule: Path, events: Path, tmp_path: Path) -> None:
    folder = tmp_path / "more" / "deep"
    folder.mkdir(parents=True)
    (folder / "other.yml").write_text(RULE.replace("rule: pair", "rule: other"))
    events.write_text(event("a", 0) + event("b", 1))
    assert [match["rule"] for match in matches(run(rule, tmp_path / "more", events))] == ["pair", "other"]


# ---------------------------------------------------------------- settings and schema

LIMITED = """
rule: limited
match: |
  sequence by card with maxspan=10m
    [a where amount > $limit] as x
    [b where country in $risky] as y
params: {limit: 10}
lists: {risky: [KP]}
"""


def test_params_and_lists(tmp_path: Path, rule: Path, events: Path) -> None:
    limited = tmp_path / "limited.yml"
    limited.write_text(LIMITED)
    (tmp_path / "risky.txt").write_text("NO\n\n0742\n7\n")
    events.write_text(event("a", 0, amount=5) + event("b", 1, country="NO"))
    settings = ("--param", "limit=4", "--list", f"risky={tmp_path / 'risky.txt'}")
    assert len(matches(run(limited, events, *settings))) == 1
    assert matches(run(limited, events, "--param", "limit=5", *settings[2:])) == []
    # A rule without them does not mind, as long as one has them.
    assert len(matches(run(rule, limited, events, *settings))) == 2
    refused = run(rule, events, "--param", "limit=4")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no rule has a parameter `limit`" in refused.stderr
    assert run(limited, events, "--param", "limit").exit_code == 2
    assert run(limited, events, "--list", "risky=/nowhere").exit_code == 2
    wrong = run(limited, events, "--param", "limit=many")
    assert wrong.exit_code == 1
    assert "not of the kind" in wrong.stderr


def test_schema(tmp_path: Path, events: Path) -> None:
    rule = tmp_path / "r.yml"
    rule.write_text("rule: r\nmatch: sequence by card with maxspan=1m [a where amout > 1] [b where true]\n")
    events.write_text(event("a", 0, amount=5))
    assert run(rule, events).exit_code == 0
    schema = tmp_path / "schema.yml"
    schema.write_text("a: {card: string, amount: double}\nb: {card: string}\n")
    refused = run(rule, events, "--schema", schema)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{rule}:2:" in refused.stderr
    assert "amount" in refused.stderr
    schema.write_text("a: {card: strong}\n")
    assert run(rule, events, "--schema", schema).exit_code == 2


def test_slip_in_a_steps_name_is_an_error_only_if_no_event_has_it(tmp_path: Path, events: Path) -> None:
    rule = tmp_path / "r.yml"
    rule.write_text(
        "rule: r\nmatch: |\n  sequence by card with maxspan=1m\n    [a where true] as probe\n"
        "    [b where amount > prob.amount] as big\n"
    )
    many = "".join(event("a", n, amount=1) for n in range(3_000))
    events.write_text(many)
    refused = run(rule, events)
    assert refused.exit_code == 1
    assert "did you mean `probe.amount`?" in refused.stderr
    events.write_text(many + event("a", 9_000, prob={"amount": 3}))
    assert run(rule, events).exit_code == 0


# ---------------------------------------------------------------- exit codes


def test_rule_errors_are_all_shown_and_nothing_runs(rule: Path, events: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("rule: wrong\nmatch: sequence by card [a where true] [b where x = 1]\n")
    events.write_text(event("a", 0) + event("b", 1))
    result = run(rule, wrong, events)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{wrong}:2:" in result.stderr
    assert "^" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("{rule}",), ("{rule}", "/nowhere.jsonl"), ("{rule}", "{folder}"), ("/nowhere.yml", "{events}"),
     ("{rule}", "{events}", "--slack", "5"), ("{rule}", "{events}", "--max-partials", "0"), ("{empty}", "{events}")],
)  # fmt: skip
def test_wrong_usage(rule: Path, events: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    events.write_text(event("a", 0))
    empty = tmp_path / "empty"
    empty.mkdir()
    names = {"rule": rule, "events": events, "folder": tmp_path, "empty": empty}
    result = run(*(argument.format(**names) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_damaged_gzip_is_said(rule: Path, events: Path) -> None:
    events.write_bytes(gzip.compress(event("a", 0).encode() * 1000)[:-20])
    result = run(rule, events)
    assert result.exit_code == 2
    assert f"cannot read {events}" in result.stderr


# ---------------------------------------------------------------- explain, score, progress


def test_explain_a_key(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + event("a", 1, card="c2") + event("x", 2))
    result = run(rule, events, "--explain", "c1")
    assert result.exit_code == 0
    assert 'pair, card="c1": 1 event, 0 matches' in result.stdout
    assert "The furthest partial match had first (line 1) and waited for second." in result.stdout
    assert run(rule, "-", "--explain", "card=c1", stdin=events.read_bytes()).stdout == result.stdout
    assert 'No event of type a or b has the key card="c9"' in run(rule, events, "--explain", "c9").stdout


def test_explain_as_json(rule: Path, events: Path) -> None:
    events.write_text(event("a", 5) + event("b", 9, card="c2"))
    told = json.loads(run(rule, events, "--explain", "c1", "--json").stdout)
    assert (told["key"], told["matches"]) == ({"card": "c1"}, 0)
    assert told["events"] == [{"line": 1, "ts": 5, "type": "a", "fields": {"card": "c1"}, "told": ["taken as first"]}]
    assert told["conclusion"][0].endswith("waited for second.")


def test_a_reader_that_goes_away_is_no_error_of_ours(rule: Path, events: Path) -> None:
    events.write_text("".join(event("ab"[n % 2], n, card=f"c{n // 2}") for n in range(40_000)))
    command = f"{sys.executable} -m samovar.service.cli.main match {rule} {events} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[1:] == ["141"]
    assert done.stderr == ""


def test_a_pipe_made_by_the_shell(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0) + event("b", 1))
    command = f"{sys.executable} -m samovar.service.cli.main match {rule} <(cat {events}) --explain c1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "It matched once" in done.stdout


def test_explain_finds_a_key_that_is_a_number(rule: Path, events: Path) -> None:
    events.write_text(event("a", 0, card=7))
    assert "pair, card=7: 1 event" in run(rule, events, "--explain", "7").stdout


def test_explain_says_how_a_key_of_several_parts_is_written(tmp_path: Path, events: Path) -> None:
    rule = tmp_path / "two.yml"
    rule.write_text("rule: two\nmatch: sequence by card, user with maxspan=1m [a where true] [b where true]\n")
    events.write_text(event("a", 0, user="u,1"))
    refused = run(rule, events, "--explain", "c1")
    assert refused.exit_code == 2
    assert "write card=...,user=..." in refused.stderr
    assert ": 1 event," in run(rule, events, "--explain", "card=c1,user=u,1").stdout


def test_score(rule: Path, events: Path, tmp_path: Path) -> None:
    events.write_text(event("a", 0) + event("b", 1) + event("a", 9))
    labels = tmp_path / "labels.jsonl"
    labels.write_text(
        '{"line": 0, "kind": "pair", "incident": "f-1"}\n{"line": 2, "kind": "pair", "incident": "f-2"}\n'
    )
    result = run(rule, events, "--score", labels, "--json", "-q")
    assert json.loads(result.stdout)["rules"][0]["recall"] == 0.5
    assert run(rule, "-", "--score", labels, "--json", "-q", stdin=events.read_bytes()).stdout == result.stdout
    assert "50.0%" in run(rule, events, "--score", labels).stdout
    for wrong, message in ((tmp_path / "none", "cannot read"), (events, "not a label")):
        refused = run(rule, events, "--score", wrong)
        assert refused.exit_code == 2
        assert message in refused.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_rate_percent_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    terminal = Terminal()
    progress = Progress(terminal)
    progress.reading(1_000, 0.1)
    assert terminal.getvalue() == ""
    now[0] = 102.0
    progress.reading(50_000, 0.25)
    assert terminal.getvalue() == "\r\x1b[K50,000 events, 25,000/s, 25%, 6 s left"
    progress.clear()
    assert terminal.getvalue().endswith("\r\x1b[K")
    silent = io.StringIO()
    Progress(silent).reading(1, 0.5)
    assert silent.getvalue() == ""
