"""The Python API: what it takes as events, what it gives, and what it says when something is wrong."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import samovar
from samovar.common.errors import Refused
from samovar.patterns.engine.frames import EventsError
from samovar.patterns.rulefile.loading import SettingError

ROOT = Path(__file__).resolve().parent.parent.parent

RULE = """
rule: card-testing
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > $limit and country != probe.country] as big
params: {limit: 200}
emit: {probes: count(probe)}
message: "{count(probe)} <small> ones"
"""

START = 1_700_000_000_000
EVENTS: list[dict[str, Any]] = [
    {"type": "purchase", "ts": START + at, "card": "c1", "amount": amount, "country": country}
    for at, amount, country in ((0, 1.0, "US"), (5_000, 1.5, "US"), (9_000, 1.0, "US"), (60_000, 900.0, "SG"))
]


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    path = tmp_path / "rules" / "card-testing.yml"
    path.parent.mkdir()
    path.write_text(RULE)
    return path


@pytest.fixture
def rules(rule: Path) -> samovar.Rules:
    return samovar.load_rules(rule)


def simple(tmp_path: Path, match: str, emit: str = "all: values(x)") -> samovar.Rules:
    path = tmp_path / "simple.yml"
    path.write_text(f"rule: simple\nmatch: |\n  {match}\nemit: {{{emit}}}\n")
    return samovar.load_rules(path)


# ---------------------------------------------------------------- all kinds of events


class Frame:
    """As polars' and pandas' data frames: anything that speaks the Arrow stream protocol."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_every_kind_of_events_gives_the_same(rules: samovar.Rules, tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    lines.write_text("\n".join(map(json.dumps, EVENTS)))
    zipped = tmp_path / "events.jsonl.gz"
    zipped.write_bytes(gzip.compress(lines.read_bytes()))
    table = pa.Table.from_pylist(EVENTS)
    wanted = rules.run(EVENTS)
    assert len(wanted) == 1
    assert wanted[0].has(
        rule="card-testing", key={"card": "c1"}, emit={"probes": 3}, steps={"probe": [0, 1, 2], "big": [3]}
    )
    for events in (
        lines, str(zipped), iter(EVENTS), tuple(EVENTS), table, Frame(table), table.to_batches()[0], table.to_reader(),
        iter(table.to_batches(max_chunksize=1)), [table.slice(0, 2), table.slice(2)],
        pa.concat_tables([table[:1], table[1:]]),
    ):  # fmt: skip
        result = rules.run(events)
        assert result.matches == wanted.matches
        assert result.events == 4
    assert rules.run(reversed(EVENTS)).matches[0].has(start=START, emit={"probes": 3})


def test_columns_of_all_types(tmp_path: Path) -> None:
    types: list[tuple[Any, list[Any], list[Any]]] = [
        (pa.int8(), [1, None, -3], [1, -3]),
        (pa.uint64(), [1, None, 2**63 + 1], [1.0, 9.223372036854776e18]),
        (pa.uint64(), [1, None, 2], [1, 2]),
        (pa.float32(), [0.5, None, 1], [0.5, 1]),
        (pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal(2)], [1.25, 2]),
        (pa.bool_(), [True, None, False], [True, False]),
        (pa.string(), ["ä", None, ""], ["ä", ""]),
        (pa.large_string(), ["x", None, "yz"], ["x", "yz"]),
        (pa.string_view(), ["x", None, "a long text that is not inlined"], ["x", "a long text that is not inlined"]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", None, "y"], ["x", "y"]),
        (pa.timestamp("us", "Europe/Berlin"), [1_500, None, -1], [1, -1]),
        (pa.timestamp("s"), [2, None, 3], [2_000, 3_000]),
        (pa.date32(), [dt.date(1970, 1, 2), None, dt.date(1970, 1, 1)], [86_400_000, 0]),
        (pa.duration("ns"), [5_000_000, None, 0], [5, 0]),
        (pa.time32("s"), [dt.time(1, 2, 3), None, dt.time(0)], ["01:02:03", "00:00:00"]),
        (pa.null(), [None, None, None], []),
    ]
    rules = simple(tmp_path, "aggregate by k over 1h [a where true] having count() == 3")
    for kind, values, wanted in types:
        table = pa.table({"type": ["a"] * 3, "ts": [1, 2, 3], "k": [7] * 3, "x": pa.array(values, kind)})
        (match,) = rules.run(table)
        assert match.emit["all"] == wanted, kind
        (sliced,) = rules.run(pa.concat_tables([table, table])[2:5])
        assert sorted(sliced.emit["all"], key=str) == sorted(wanted, key=str), kind


def test_nested_columns_by_dotted_path(tmp_path: Path) -> None:
    text = 'sequence by u.id with maxspan=1m [a where u.geo.country == "US"] [a where l != null]'
    rules = simple(tmp_path, text, "")
    events: list[dict[str, Any]] = [
        {"type": "a", "ts": 1, "u": {"id": 5, "geo": {"country": "US"}}, "l": None},
        {"type": "a", "ts": 2, "u": {"id": 5, "geo": None}, "l": [1, 2]},
        {"type": "a", "ts": 3, "u": None, "l": [1]},
    ]
    (match,) = rules.run(pa.Table.from_pylist(events))
    assert match.key == {"u.id": 5}
    assert rules.run(pa.Table.from_pylist(events)).matches == rules.run(events).matches
    flat = pa.table({"type": ["a", "a"], "ts": [1, 2], "u.id": [5, 5], "u.geo.country": ["US", "US"], "l": [[1], [2]]})
    assert len(rules.run(flat)) == 1


def test_times_as_instants_text_and_numbers(rules: samovar.Rules) -> None:
    instants = [dt.datetime.fromtimestamp(event["ts"] / 1000, dt.UTC) for event in EVENTS]
    wanted = rules.run(EVENTS).matches
    table = pa.Table.from_pylist(EVENTS)
    place = table.schema.get_field_index("ts")
    for column in (
        pa.array(instants, pa.timestamp("us", "UTC")), pa.array([time.isoformat() for time in instants]),
        pa.array([event["ts"] + 0.9 for event in EVENTS]), pa.array(instants, pa.timestamp("s")).dictionary_encode(),
    ):  # fmt: skip
        assert rules.run(table.set_column(place, "ts", column)).matches == wanted
    as_objects = [
        {**event, "ts": instant, "amount": Decimal(str(event["amount"]))}
        for event, instant in zip(EVENTS, instants, strict=True)
    ]
    assert rules.run(as_objects).matches == wanted
    assert (
        rules.run(
            [{**event, "ts": instant.replace(tzinfo=None)} for event, instant in zip(EVENTS, instants, strict=True)]
        ).matches
        == wanted
    )


def test_other_names_and_one_type(rules: samovar.Rules) -> None:
    renamed = [
        {"when": event["ts"], **{name: event[name] for name in ("card", "amount", "country")}} for event in EVENTS
    ]
    options: dict[str, Any] = {"time": "when", "type": None, "fixed_type": "purchase"}
    assert len(rules.run(renamed, **options)) == 1
    assert len(rules.run(pa.Table.from_pylist(renamed), **options)) == 1


def test_dicts_with_values_that_json_lacks(rules: samovar.Rules) -> None:
    odd = [
        {**event, "amount": np.float64(event["amount"]), "n": float("nan"), "tags": {"a"}, "id": object()}
        for event in EVENTS
    ]
    assert len(rules.run(odd)) == 1


# ---------------------------------------------------------------- bad and late


def test_bad_events_are_listed(rules: samovar.Rules, tmp_path: Path) -> None:
    events = [*EVENTS[:2], {"type": "purchase"}, {"ts": 1}, {"type": 3, "ts": 1}, *EVENTS[2:]]
    result = rules.run(events)
    assert [bad.place for bad in result.bad] == [2, 3, 4]
    assert "`ts` is missing" in result.bad[0].reason
    assert len(result) == 1
    table = pa.Table.from_pylist([*EVENTS, {"type": "purchase"}, {"ts": 5}, {"type": "purchase", "ts": 10**17}])
    framed = rules.run(table)
    assert sorted(bad.place for bad in framed.bad) == [4, 5, 6]
    assert (len(framed), framed.events) == (1, 4)
    text = table.set_column(1, "ts", pa.array(["2023-11-14", "x", "12", None, None, None, "2023"]))
    assert [bad.place for bad in rules.run(text).bad] == [1, 2, 3, 4, 5, 6]
    path = tmp_path / "bad.jsonl"
    path.write_text("nonsense\n\n")
    assert [bad.place for bad in rules.run(path).bad] == [0]


def test_late_events_and_slack(rules: samovar.Rules) -> None:
    shuffled = [EVENTS[1], EVENTS[0], EVENTS[2], EVENTS[3]]
    assert len(rules.run(shuffled, slack="5s")) == 1
    late = rules.run(shuffled, slack=1_000)
    assert [(one.offset, one.by_ms) for one in late.late] == [(1, 4_000)]
    assert repr(late) == "<Result: 0 matches in 4 events, 1 late>"
    for wrong in ("5", -1, True):
        with pytest.raises(ValueError, match="slack is a time"):
            rules.run(EVENTS, slack=wrong)


def test_suppressed_are_kept_on_request(tmp_path: Path) -> None:
    path = tmp_path / "r.yml"
    path.write_text("rule: r\nmatch: aggregate by k over 1s [a where true] having count() > 0\nsuppress: 1m\n")
    rules = samovar.load_rules(path)
    events = [{"type": "a", "ts": ts, "k": 1} for ts in (0, 5_000)]
    assert [len(rules.run(events).all_matches), rules.run(events).counters["r"].suppressed] == [1, 1]
    result = rules.run(events, suppressed=True)
    assert (len(result), len(result.all_matches), result.all_matches[1].suppressed) == (1, 2, True)


def test_no_flush(tmp_path: Path) -> None:
    rules = simple(tmp_path, "session by k with gap=1m [a where true]")
    events = [{"type": "a", "ts": 1, "k": 1, "x": 1}]
    assert (len(rules.run(events)), len(rules.run(events, flush=False))) == (1, 0)


# ---------------------------------------------------------------- results


def test_result(rules: samovar.Rules) -> None:
    result = rules.run(EVENTS)
    (match,) = result
    assert match == result[0] == result.of("card-testing")[0] == rules.run(EVENTS)[0]
    assert hash(match) == hash(rules.run(EVENTS)[0])
    assert result.of("other") == []
    assert result[:0] == []
    assert bool(rules.run([]))
    assert not match.has(emit={"probes": 4})
    assert not match.has(steps={"probe": [0]})
    assert match.as_dict()["steps"] == {"probe": [0, 1, 2], "big": [3]}
    assert samovar.Match.of(match.as_dict()) == match
    with pytest.raises(AttributeError):
        match.rule = "x"  # type: ignore[misc]


def test_arrow_and_html(rules: samovar.Rules) -> None:
    result = rules.run(EVENTS)
    table = result.to_arrow()
    assert table.column("at").to_pylist() == [dt.datetime.fromtimestamp((START + 60_000) / 1000, dt.UTC)]
    assert table.column("steps").to_pylist() == [[("probe", [0, 1, 2]), ("big", [3])]]
    assert rules.run([]).to_arrow().schema == table.schema
    shown = result._repr_html_()
    assert "3 &lt;small&gt; ones" in shown
    assert "<small>" not in shown


# ---------------------------------------------------------------- what goes wrong


def test_rule_errors_are_raised_all_at_once(rule: Path) -> None:
    (rule.parent / "a.yml").write_text("rule: a\nmatch: sequence [a where x = 1]\n")
    (rule.parent / "b.yml").write_text("rule: b\nmatch: nonsense\n")
    with pytest.raises(samovar.RuleError) as raised:
        samovar.load_rules(rule.parent)
    assert {Path(finding.path).name for finding in raised.value.findings} == {"a.yml", "b.yml"}
    assert "a.yml:2:" in str(raised.value)
    assert "^" in str(raised.value)
    assert len(samovar.check(rule.parent)) >= 2
    assert samovar.check(rule) == ()


def test_params_and_schema(rule: Path) -> None:
    assert len(samovar.load_rules(rule, params={"limit": 1_000}).run(EVENTS)) == 0
    with pytest.raises(SettingError, match="no rule has a parameter `limt`"):
        samovar.load_rules(rule, params={"limt": 1})
    with pytest.raises(samovar.RuleError, match="no field"):
        samovar.load_rules(rule, schema={"purchase": {"card": "string", "amount": "double"}})


def test_kind_errors(rules: samovar.Rules, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(EVENTS)
    with pytest.raises(SettingError, match="no rule files"):
        samovar.load_rules()
    with pytest.raises(ValueError, match="there are no rules to run"):
        samovar.Rules([])
    with pytest.raises(EventsError, match="no column `ts` for their time"):
        rules.run(table.drop_columns(["ts"]))
    with pytest.raises(EventsError, match="fixed_type"):
        rules.run(table.drop_columns(["type"]))
    with pytest.raises(EventsError, match="did you mean `countri`"):
        rules.run(table.rename_columns(["type", "ts", "card", "amount", "countri"]))
    assert rules.run(table.drop_columns(["country"]), missing="null").events == 4
    with pytest.raises(EventsError, match="the time column `card`"):
        rules.run(table.set_column(2, "card", pa.array([True] * 4)), time="card")
    with pytest.raises(EventsError, match="the type column `ts` is not text"):
        rules.run(table, type="ts")
    with pytest.raises(EventsError, match="which no event can hold"):
        rules.run(table.set_column(2, "card", pa.array([b"x"] * 4)))
    with pytest.raises(TypeError, match="one event alone"):
        rules.run(EVENTS[0])
    for wrong in (5, [5], [EVENTS[0], 5]):
        with pytest.raises(TypeError):
            rules.run(wrong)
    with pytest.raises(FileNotFoundError):
        rules.run(tmp_path / "nowhere.jsonl")
    with pytest.raises(ValueError, match="missing is"):
        rules.run(EVENTS, missing="no")


# ---------------------------------------------------------------- the documentation, and the import


def test_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
    assert len(snippets) >= 5
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "card-testing.yml").write_text(RULE)
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, EVENTS)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, names)


def test_without_pyarrow_dicts_work_and_frames_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pa.table({"type": ["a"], "ts": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rules = simple(tmp_path, "sequence by k with maxspan=0ms [a where true]", "key: k")
    found = rules.run([{"type": "a", "ts": 1, "k": 1}])
    assert len(found.matches) == 1
    for use in (lambda: rules.run(frame), found.to_arrow):
        with pytest.raises(Refused) as refused:
            use()
        assert (refused.value.code, "samovar[arrow]" in refused.value.hint) == ("arrow-missing", True)


def test_importing_samovar_is_cheap() -> None:
    program = (
        "import sys, samovar; heavy = {'numpy', 'pyarrow', 'lark', 'samovar.patterns'} & set(sys.modules); "
        "assert not heavy, heavy; assert 'load_rules' in dir(samovar); samovar.load_rules; "
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        samovar.nothing  # noqa: B018
