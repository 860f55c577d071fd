"""A replay gives the same lines in the same order, however its input is cut and in whatever order it arrives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.common.tunables import Tunables
from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.replay import BadLine, EventReplay, LateLine, Lines
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.constants import duration_ms
from tests.support.project import ROOT

CASES = sorted((ROOT / "tests" / "cases" / "match").iterdir())

RULE = """
rule: r
match: |
  sequence by card with maxspan=20ms
    [a where true] as first with runs=2..
    [b where true] as second
    ![c where true] with within=5ms
"""


def program_of(*texts: str) -> Program:
    loaded = [load_text(text) for text in texts]
    return compile_rules(one.rule for one in loaded if one.rule is not None)


def run(
    program: Program, data: bytes, sizes: Sequence[int] = (), names: tuple[str, str] = ("ts", "type"), **options: object
) -> list[bytes]:
    """The output for the input cut into pieces of these sizes, over and over; whole without any."""
    lines = Lines(Decoder(program.fields, *names), lambda _: None)
    replay = EventReplay(program, **options)  # type: ignore[arg-type]
    found: list[bytes] = []
    place = number = 0
    while place < len(data):
        size = sizes[number % len(sizes)] if sizes else len(data)
        found += replay.feed(lines.take(data[place : place + size])).lines
        place, number = place + size, number + 1
    found += replay.feed(lines.end()).lines
    for part in replay.finish():
        found += part.lines
    return found


# ---------------------------------------------------------------- cuts


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_output_does_not_depend_on_how_rows_are_cut(folder: Path) -> None:
    meta = folder / "meta.json"
    arguments = json.loads(meta.read_text())["args"] if meta.exists() else []

    def argument(name: str, default: str) -> str:
        return arguments[arguments.index(name) + 1] if name in arguments else default

    names = argument("--time-field", "ts"), argument("--type-field", "type")
    flush = "--no-flush" not in arguments
    slack = duration_ms(argument("--slack", "")) if "--slack" in arguments else None
    program = program_of((folder / "rule.yml").read_text())
    data = (folder / "events.jsonl").read_bytes()
    whole = run(program, data, names=names, flush=flush, slack_ms=slack)
    for rows in (1, 2, 7):
        # A chunk of so many rows a step, and for a slack a batch of so many rows at a time.
        few, more = Tunables(replay_rows=rows), Tunables(replay_rows=rows * 4, burst_records=rows)
        assert run(program, data, names=names, flush=flush, slack_ms=slack, tunables=few) == whole
        pieces = [len(b"".join(part)) for part in in_parts(data.splitlines(keepends=True), rows)]
        assert run(program, data, pieces or [1], names=names, flush=flush, slack_ms=slack) == whole
        assert run(program, data, pieces or [1], names=names, flush=flush, slack_ms=slack, tunables=more) == whole
    if slack is None:
        assert run(program, data, [64], names=names, flush=flush, slack_ms=10**15) == whole


def in_parts(lines: list[bytes], size: int) -> list[list[bytes]]:
    return [lines[first : first + size] for first in range(0, len(lines), size)]


EVENTS = st.lists(st.tuples(st.sampled_from("abcx"), st.integers(0, 60), st.sampled_from("12")), max_size=40)
SIZES = st.lists(st.integers(1, 90), min_size=1, max_size=5)


def as_lines(events: Sequence[tuple[str, int, str]]) -> bytes:
    return "".join(json.dumps({"type": kind, "ts": ts, "card": card}) + "\n" for kind, ts, card in events).encode()


@given(EVENTS, SIZES, st.integers(1, 9), st.booleans())
def test_any_cut_gives_the_same(events: list[tuple[str, int, str]], sizes: list[int], rows: int, flush: bool) -> None:
    program = program_of(RULE)
    data = as_lines(events)
    whole = run(program, data, flush=flush)
    assert run(program, data, sizes, flush=flush, tunables=Tunables(replay_rows=rows)) == whole
    assert run(program, data, sizes, flush=flush, slack_ms=60) == whole
    slack = run(program, data, flush=flush, slack_ms=10)
    assert run(program, data, sizes, flush=flush, slack_ms=10) == slack


@given(EVENTS, st.lists(st.integers(0, 10), min_size=40, max_size=40), SIZES)
def test_disorder_within_the_slack_changes_nothing(
    events: list[tuple[str, int, str]], delays: list[int], sizes: list[int]
) -> None:
    """Each event arrives up to 10 ms after its time. Coordinates differ with the arrival, all else is equal."""
    program = program_of(RULE)
    ordered = sorted({ts: (kind, ts, card) for kind, ts, card in events}.values(), key=lambda event: event[1])
    arrival = sorted(range(len(ordered)), key=lambda place: ordered[place][1] + delays[place])
    arrived = [ordered[place] for place in arrival]
    late: list[LateLine] = []
    found = run(program, as_lines(arrived), sizes, slack_ms=10, on_late=late.append)
    assert not late
    back = []
    for line in found:
        match = json.loads(line)
        steps = {step: [arrival[place] for place in places] for step, places in match["steps"].items()}
        back.append((match["key"], match["start"], match["end"], match["at"], steps))
    wanted = [json.loads(line) for line in run(program, as_lines(ordered))]
    assert back == [(m["key"], m["start"], m["end"], m["at"], m["steps"]) for m in wanted]


def test_late_events_are_told_and_left_out() -> None:
    late: list[LateLine] = []
    data = as_lines([("a", 0, "1"), ("a", 50, "1"), ("a", 39, "1"), ("a", 40, "1"), ("a", 10, "1")])
    run(program_of(RULE), data, slack_ms=10, on_late=late.append)
    assert late == [LateLine(2, 1), LateLine(4, 30)]


def test_events_fed_as_batches_belong_to_the_replay() -> None:
    program = program_of(RULE)
    decoder = Decoder(program.fields)
    replay = EventReplay(program)
    lines = Lines(decoder, lambda _: None)
    replay.feed(lines.take(as_lines([("a", 1, "1"), ("a", 2, "1")])))
    replay.feed(Batch(len(program.fields)))
    replay.feed(lines.take(as_lines([("b", 3, "1")])))
    found = [match for part in replay.finish() for match in part]
    assert [match["steps"] for match in found] == [{"first": [0, 1], "second": [2]}]
    assert (replay.events, replay.end_ms) == (3, 3)


# ---------------------------------------------------------------- lines


def decoded(data: bytes, sizes: Sequence[int], limit: int = 1_000) -> tuple[list[tuple[int, int]], list[BadLine]]:
    bad: list[BadLine] = []
    lines = Lines(Decoder(()), bad.append, limit)
    rows: list[tuple[int, int]] = []
    place = number = 0
    while place < len(data):
        size = sizes[number % len(sizes)]
        batch = lines.take(data[place : place + size])
        rows += zip(batch.offset.tolist(), batch.time.tolist(), strict=True)
        place, number = place + size, number + 1
    batch = lines.end()
    return [*rows, *zip(batch.offset.tolist(), batch.time.tolist(), strict=True)], bad


LINE = st.sampled_from(
    [b'{"type":"a","ts":1}', b"", b"  ", b"nonsense", b'{"type":"a","ts":2}\r', b'{"ts":3}', b"x" * 60,
     b'{"type":"' + b"a" * 60 + b'","ts":4}', "\ufeff".encode(), b"\xff"]
)  # fmt: skip


@given(st.lists(LINE, max_size=12), st.booleans(), SIZES)
def test_lines_are_the_same_in_pieces_of_any_size(lines: list[bytes], mark: bool, sizes: list[int]) -> None:
    data = b"\xef\xbb\xbf" * mark + b"\n".join(lines)
    assert decoded(data, sizes, 50) == decoded(data, [max(1, len(data))], 50)


def test_line_numbers_offsets_and_reasons() -> None:
    data = b'\xef\xbb\xbf{"type":"a","ts":1}\n\n{"type":"a"}\n' + b"x" * 200 + b'\r\n{"type":"a","ts":5}'
    rows, bad = decoded(data, [7], 100)
    assert rows == [(0, 1), (4, 5)]
    assert [line.number for line in bad] == [3, 4]
    assert str(bad[1]) == "4: the line is longer than 100 bytes"
    assert "the time field `ts` is missing" in str(bad[0])


def test_a_last_line_that_is_too_long_is_told() -> None:
    assert [line.number for line in decoded(b"\n" + b"x" * 500, [9], 100)[1]] == [2]
