"""init, produce, read and topics as a person types them, on the embedded log."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.service.cli.main import app
from samovar.service.config.loading import load_service
from samovar.service.offline.produce import whole_lines
from samovar.service.query.read import shown
from tests.support.project import ROOT

SERVICE = """
service: s
streams:
  purchase: {key: card}
  visit: {key: user.id, type: kind, topic: visits}
"""


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    path = tmp_path / "service.yml"
    path.write_text(SERVICE)
    return path


@pytest.fixture
def produce(config: Path, tmp_path: Path) -> Callable[..., Result]:
    """Produces lines to the stream purchase."""

    def produced(*lines: str | bytes, stream: str = "purchase", options: tuple[str, ...] = ()) -> Result:
        file = tmp_path / "events.jsonl"
        file.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
        return run("produce", config, stream, file, *options)

    return produced


@pytest.fixture
def log(config: Path) -> Iterator[EmbeddedLog]:
    folder = load_service(config).log.embedded
    assert folder is not None
    log = EmbeddedLog(folder)
    yield log
    log.close()


def purchase(card: object, ts: int = 1, **others: object) -> str:
    return json.dumps({"card": card, "ts": ts, **others})


def records(config: Path, topic: str, *options: object) -> list[dict[str, Any]]:
    done = run("read", config, topic, "--json", *options)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- init


def test_init_makes_a_folder_that_works_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "Card Fraud"
    done = run("init", folder)
    assert done.exit_code == 0, done.output
    config = folder / "service.yml"
    assert f"samovar produce {config} purchase" in done.stdout
    assert load_service(config).service == "card-fraud"
    assert run("rules", "check", folder / "rules", "--strict").exit_code == 0
    assert run("rules", "test", folder / "rules").exit_code == 0
    assert run("produce", config, "purchase", folder / "events.jsonl").exit_code == 0
    events = (folder / "events.jsonl").read_text().splitlines()
    assert len(records(config, "purchase")) == len(events)
    assert run("topics", "check", config).exit_code == 0


def test_the_events_of_init_give_two_alerts(tmp_path: Path) -> None:
    run("init", tmp_path / "s")
    events = [json.loads(line) for line in (tmp_path / "s" / "events.jsonl").read_text().splitlines()]
    typed = "".join(json.dumps({"type": "purchase", **event}) + "\n" for event in events)
    done = run("match", tmp_path / "s" / "rules", "-", stdin=typed.encode())
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(match["rule"], match["key"]["card"]) for match in found] == [
        ("card-testing", "c1"),
        ("two-countries", "c7"),
    ]


def test_init_fills_an_empty_folder_and_refuses_another(tmp_path: Path) -> None:
    assert run("init", tmp_path).exit_code == 0
    done = run("init", tmp_path)
    assert done.exit_code == 2
    assert done.stderr.startswith("folder-not-empty: ")
    assert run("init", tmp_path / "service.yml").exit_code == 2


def test_init_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("init", tmp_path / "file" / "inside")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "unwritable")


# ---------------------------------------------------------------- produce


def test_records_are_the_lines_keyed_and_placed_by_the_key_field(produce: Callable[..., Result], config: Path) -> None:
    lines = [purchase(f"c{number % 7}", number) for number in range(200)]
    done = produce(*lines)
    assert (done.exit_code, done.stderr) == (0, "200 records to purchase\n")
    found = records(config, "purchase")
    assert sorted(json.dumps(record["value"]) for record in found) == sorted(lines)
    for record in found:
        assert record["key"] == record["value"]["card"]
        assert record["partition"] == partition_of(record["key"].encode(), 4)
    by_card = [record["value"]["ts"] for record in found if record["key"] == "c3"]
    assert by_card == sorted(by_card)  # a key's events keep their order


KEYS = [
    ("c1", "c1"), ("", ""), ("a\"b\\c", 'a"b\\c'), ("\u00fc", "\u00fc"), (7, "7"), (7.0, "7"), (-0.5, "-0.5"),
    (True, "true"), (None, None), ({"a": 1}, '{"a": 1}'), (2**60, str(2**60)),
]  # fmt: skip


def test_every_kind_of_key_has_a_text(produce: Callable[..., Result], config: Path) -> None:
    # One by one and all in one file: texts without escapes go another way than the rest.
    for key, _ in KEYS:
        assert produce(purchase(key)).exit_code == 0
    assert produce(*(purchase(key) for key, _ in KEYS)).exit_code == 0
    wanted = [text for _, text in KEYS for _ in range(2)]
    assert sorted(map(str, (record["key"] for record in records(config, "purchase")))) == sorted(map(str, wanted))


def test_a_key_inside_an_object_and_a_type_field(produce: Callable[..., Result], config: Path) -> None:
    done = produce('{"kind": "login", "user": {"id": "u1"}, "ts": 1}', stream="visit")
    assert done.exit_code == 0
    assert [record["key"] for record in records(config, "visit")] == ["u1"]
    done = produce('{"user": {"id": "u1"}, "ts": 1}', stream="visit")
    assert (done.exit_code, "the type field `kind` is missing" in done.stderr) == (3, True)


def test_bytes_are_written_as_they_stand(produce: Callable[..., Result], config: Path, log: EmbeddedLog) -> None:
    line = b'  {"card" : "c1",\t"ts":1 , "x":1.50}  '
    assert produce(line).exit_code == 0
    at = TopicPartition("purchase", partition_of(b"c1", 4))
    (found,) = log.reader({at: 0}).poll(10, 1.0)
    assert found.value(0) == line


def test_a_bad_line_stops_it_with_what_stands_before_written(produce: Callable[..., Result], config: Path) -> None:
    done = produce(purchase("c1"), "", purchase("c2"), '{"card": nul}', purchase("c3"))
    assert done.exit_code == 3
    assert ":4:" in done.stderr
    assert "not JSON" in done.stderr
    assert "2 lines before it written" in done.stderr
    assert sorted(record["key"] for record in records(config, "purchase")) == ["c1", "c2"]


def test_bad_lines_are_left_out_and_counted(produce: Callable[..., Result], config: Path) -> None:
    bad = ['{"card": "x"}', "[1]", b"\xff", '{"card": "x", "ts": "soon"}']
    lines: list[str | bytes] = [purchase(f"c{number}") for number in range(100)]
    random.Random(1).shuffle(mixed := lines + bad * 5)
    done = produce(*mixed, options=("--skip-bad",))
    assert done.exit_code == 0
    assert done.stderr.count("events.jsonl:") == 10  # the first ones in words, the rest as a number
    assert done.stderr.endswith("... and 10 more\n100 records to purchase, 20 bad lines left out\n")
    assert {record["key"] for record in records(config, "purchase")} == {f"c{number}" for number in range(100)}


@pytest.mark.parametrize("form", ["plain", "gzip", "stdin", "no line end", "crlf", "byte order mark"])
def test_input_in_all_shapes(form: str, config: Path, tmp_path: Path) -> None:
    data = (purchase("c1") + "\n" + purchase("c2") + "\n").encode()
    shapes = {
        "gzip": gzip.compress(data),
        "no line end": data.rstrip(),
        "crlf": data.replace(b"\n", b"\r\n"),
        "byte order mark": b"\xef\xbb\xbf" + data,
    }
    file = tmp_path / "events"
    file.write_bytes(shapes.get(form, data))
    done = (
        run("produce", config, "purchase", "-", stdin=data)
        if form == "stdin"
        else run("produce", config, "purchase", file)
    )
    assert done.exit_code == 0, done.output
    assert sorted(record["key"] for record in records(config, "purchase")) == ["c1", "c2"]


def test_lines_are_cut_alike_however_the_input_comes() -> None:
    data = b"\xef\xbb\xbfab\n\nc\ndefg\nh"
    for size in range(1, len(data) + 1):
        blocks = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(whole_lines(iter(blocks))) == data.removeprefix(b"\xef\xbb\xbf")
        assert all(block.endswith(b"\n") for block in list(whole_lines(iter(blocks)))[:-1])


TYPED = """
service: shop
streams:
  purchase: {key: card, schema: {card: string}}
  web:
    key: user
    type: type
    schema: {view: {user: string}, pay: {user: string}}
"""


def test_without_a_stream_each_line_goes_to_the_one_that_has_events_of_its_type(tmp_path: Path) -> None:
    config, file = tmp_path / "typed.yml", tmp_path / "events.jsonl"
    (tmp_path / "rules").mkdir()
    config.write_text(TYPED)
    lines = [
        '{"type": "purchase", "card": "c1", "ts": 1}',
        '{"type": "pay", "user": "u1", "ts": 2}',
        "",
        '{"type": "view", "user": "u2", "ts": 3}',
        '{"type": "refund", "card": "c1", "ts": 4}',
        '{"type": "purchase", "card": "c2", "ts": 5}',
        "[1]",
    ]
    file.write_text("\n".join(lines))
    stopped = run("produce", config, file)
    assert stopped.exit_code == 3
    assert "events.jsonl:5: no stream has events of the type `refund`; types are purchase, view, pay" in stopped.stderr
    assert [each["key"] for each in records(config, "purchase")] == ["c1"]
    assert sorted(each["key"] for each in records(config, "web")) == ["u1", "u2"]
    done = run("produce", config, file, "--skip-bad")
    assert done.exit_code == 0
    assert "4 records to purchase, web, 2 bad lines left out" in done.stderr
    assert "events.jsonl:7: it has no `type`" in done.stderr
    assert sorted(each["key"] for each in records(config, "purchase")) == ["c1", "c1", "c2"]


def test_what_generate_writes_is_taken_as_it_is(tmp_path: Path) -> None:
    config, file = ROOT / "examples" / "fraud" / "service.yml", tmp_path / "events.jsonl"
    assert run("generate", "fraud", "--events", 200, "--keys", 20, "--out", file).exit_code == 0
    shutil.copytree(config.parent, tmp_path / "fraud", ignore=shutil.ignore_patterns(".samovar"))
    done = run("produce", tmp_path / "fraud" / "service.yml", file)
    assert (done.exit_code, done.stderr) == (0, "200 records to purchase, refund, login, transfer, order\n")


def test_a_stream_that_is_not_there(produce: Callable[..., Result]) -> None:
    done = produce(purchase("c1"), stream="purchse")
    assert done.exit_code == 2
    assert done.stderr.startswith("unknown-stream: ")
    assert "did you mean `purchase`?" in done.stderr


def test_files_that_cannot_be_read(config: Path, tmp_path: Path) -> None:
    done = run("produce", config, "purchase", tmp_path / "none")
    assert (done.exit_code, done.stderr) == (
        2,
        f"samovar: cannot read {tmp_path / 'none'}: No such file or directory\n",
    )
    done = run("produce", tmp_path / "none.yml", "purchase", "-")
    assert done.exit_code == 2
    assert "none.yml:1:1: error: cannot read the file" in done.stderr


def test_produce_makes_no_topics_where_it_may_not(config: Path, produce: Callable[..., Result]) -> None:
    config.write_text(SERVICE + "topics: check\n")
    done = produce(purchase("c1"))
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "topic-missing")


# ---------------------------------------------------------------- read


@pytest.fixture
def clocked(config: Path) -> Iterator[EmbeddedLog]:
    """The service's log with a clock that gains a second with every append: records of a, b, c, ... in turn."""
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 1_000))
    now = [next(times)]
    folder = load_service(config).log.embedded
    assert folder is not None
    assert run("produce", config, "purchase", "-", stdin=b"").exit_code == 0  # makes the topics
    log = EmbeddedLog(folder, clock=lambda: now[0])
    for number, value in enumerate("abcdefgh"):
        now[0] = next(times)
        log.append([Append(topic="purchase", records=[(f"k{number}".encode(), value.encode())], partition=number % 4)])
    yield log
    log.close()


def values(config: Path, *options: object) -> str:
    return "".join(record["value"] for record in records(config, "purchase", *options))


RANGES = [
    ((), "abcdefgh"),
    (("--from", "begin", "--to", "end"), "abcdefgh"),
    (("--from", "end"), ""),
    (("--from", "1"), "efgh"),
    (("--to", "1"), "abcd"),
    (("--from", "-1"), "efgh"),
    (("--from", "-9"), "abcdefgh"),
    (("--to", "-1"), "abcd"),
    (("--partition", "2"), "cg"),
    (("--limit", "3"), "abc"),
    (("--from", "2023-11-14T22:13:23Z"), "cdefgh"),
    (("--from", "2023-11-14T22:13:22.500Z", "--to", "2023-11-14T22:13:25Z"), "cd"),
    (("--to", "2022-01-01"), ""),
    (("--from", "99"), ""),
]


@pytest.mark.parametrize(("options", "wanted"), RANGES)
def test_ranges_are_merged_by_time(options: tuple[str, ...], wanted: str, config: Path, clocked: EmbeddedLog) -> None:
    assert values(config, *options) == wanted


def test_a_line_for_people(config: Path, clocked: EmbeddedLog) -> None:
    done = run("read", config, "purchase", "--limit", 1)
    assert done.stdout == "0/0  2023-11-14T22:13:21.000Z  k0  a\n"


def test_headers_tombstones_and_bytes(config: Path, clocked: EmbeddedLog) -> None:
    headers = (("why", b"Malformed"), ("twice", b"1"), ("twice", b"2"), ("raw", b"\xff"))
    clocked.append(
        [
            Append(
                topic="s-dead-letters",
                records=[(None, b"\xff\x00"), (b"\xfe", None), (b"k", b'{"a": [1]}')],
                partition=0,
                headers=[headers, (), ()],
            )
        ]
    )
    first, second, third = records(config, "dead-letters")
    assert (first["key"], first["value_base64"]) == (None, "/wA=")
    assert first["headers"] == {"why": "Malformed", "twice": ["1", "2"], "raw": "base64:/w=="}
    assert (second["key_base64"], second["value"]) == ("/g==", None)
    assert (third["value"], third["headers"]) == ({"a": [1]}, {})
    lines = run("read", config, "dead-letters").stdout.splitlines()
    assert lines[0].endswith("-  base64:/wA=  {why: Malformed, twice: 1, twice: 2, raw: base64:/w==}")
    assert lines[1].endswith("base64:/g==  (deleted)")
    assert lines[2].endswith('k  {"a": [1]}')


@pytest.mark.parametrize("text", ['{"a": NaN}', "{broken", "null", "7", "[" * 100_000])
def test_what_is_not_json_stays_text(text: str, config: Path, clocked: EmbeddedLog) -> None:
    clocked.append([Append(topic="s-late", records=[(b"k", text.encode())])])
    assert [record["value"] for record in records(config, "late")] == [text]


@pytest.mark.parametrize("name", ["alerts", "late", "dead-letters", "changelog", "journal"])
def test_words_for_the_services_own_topics(name: str, config: Path, clocked: EmbeddedLog) -> None:
    clocked.append([Append(topic=f"s-{name}", records=[(b"k", b"here")])])
    assert [record["topic"] for record in records(config, name)] == [f"s-{name}"]
    assert [record["value"] for record in records(config, f"s-{name}")] == ["here"]


def test_terminals_are_safe_from_what_is_read() -> None:
    assert shown(b"a\x1b[31m\nb\tc") == "a\\u001b[31m\\u000ab\\tc"


REFUSALS = [
    (("purchse",), "unknown-topic", "did you mean `purchase`?"),
    (("purchase", "--from", "soon"), "bad-place", "write begin, end"),
    (("purchase", "--partition", "4"), "unknown-partition", "from 0 to 3"),
]


@pytest.mark.parametrize(("arguments", "code", "hint"), REFUSALS)
def test_refusals_are_told_in_words(
    arguments: tuple[str, ...], code: str, hint: str, config: Path, clocked: EmbeddedLog
) -> None:
    done = run("read", config, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{code}: ")
    assert hint in done.stderr


def test_a_topic_that_is_not_made_yet(config: Path) -> None:
    done = run("read", config, "alerts")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "topic-missing")


def test_follow_has_no_end(config: Path) -> None:
    assert run("read", config, "alerts", "--follow", "--to", "end").exit_code == 2


def test_follow_shows_what_comes(config: Path, clocked: EmbeddedLog) -> None:
    command = [sys.executable, "-m", "samovar.service.cli", "read", str(config), "purchase", "--follow", "--json"]
    with subprocess.Popen([*command, "--from", "end", "--limit", "3"], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        # It may not be there yet: write until it has seen something, and then what it has not seen.
        while process.poll() is None:
            clocked.append([Append(topic="purchase", records=[(b"k", b"x")], partition=0)])
        seen = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    assert [record["value"] for record in seen] == ["x", "x", "x"]
    offsets = [record["offset"] for record in seen]
    assert offsets == list(range(offsets[0], offsets[0] + 3))


# ---------------------------------------------------------------- topics


def test_topics_check_finds_and_then_does_not(config: Path, produce: Callable[..., Result]) -> None:
    done = run("topics", "check", config)
    assert done.exit_code == 1
    assert done.stdout.count("topic-missing: ") == 13
    produce(purchase("c1"))
    done = run("topics", "check", config, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"ok": True, "topics": 13, "mismatches": []})


def test_topics_plan_asks_nobody(config: Path) -> None:
    config.write_text(SERVICE + 'log: {kafka: {bootstrap: "${NOWHERE}", sasl.password: "${UNSET}"}}\n')
    for option, part in ((), "READ on group s"), (("--commands",), "--bootstrap-server ${NOWHERE} "):
        done = run("topics", "plan", config, *option)
        assert (done.exit_code, part in done.stdout) == (0, True), done.output
    assert json.loads(run("topics", "plan", config, "--json").stdout)["service"] == "s"


def test_errors_of_a_service_file_end_every_command_alike(config: Path) -> None:
    config.write_text("service: A\nnonsense: 1\n")
    for command in (["topics", "plan"], ["topics", "check"], ["read"], ["produce"]):
        rest = {"read": ["alerts"], "produce": ["purchase", "-"]}.get(command[0], [])
        done = run(*command, config, *rest)
        assert done.exit_code == 2
        assert f"{config}:2:1: error: there is no setting `nonsense`" in done.stderr
        assert "Traceback" not in done.output
