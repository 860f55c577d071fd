"""Rules through the matcher, in every way that a test may want: whole, cut, stored and loaded, from lists or arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import BOOL, FLOAT, INT, TEXT, Batch, address_of, joined, kernel
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import END_OF_TIME, States, step
from samovar.patterns.engine.replay import EventReplay, LateLine
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule

Fields: TypeAlias = Mapping[str, Any]
Match: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[bytes, bytes]


# ---------------------------------------------------------------- rules and events


def rules_of(*texts: str) -> list[Rule]:
    rules = []
    for text in texts:
        loaded = load_text(text)
        assert loaded.rule is not None, [finding.message for finding in loaded.findings]
        rules.append(loaded.rule)
    return rules


def program_of(*texts: str) -> Program:
    return compile_rules(rules_of(*texts))


def arrived(
    program: Program, events: Sequence[Fields | None], type_field: str = "type", time_field: str = "ts"
) -> Batch:
    """A batch of the events as they stand; an event's offset is its index. None stands for a blank line."""
    decoder = Decoder(program.fields, time_field, type_field)
    batch = decoder.batch()
    decoder.decode(batch, joined([b"" if event is None else json.dumps(event).encode() for event in events]), copy=True)
    return batch


def in_order(batch: Batch) -> Batch:
    batch.select(np.lexsort((batch.offset, batch.partition, batch.stream, batch.time)).astype(np.int64))
    return batch


def part(batch: Batch, first: int, end: int) -> Batch:
    """Some rows, as a batch of their own."""
    rows = Batch(batch.columns)
    rows.append(batch, np.arange(first, end, dtype=np.int64))
    return rows


def batch_of_arrays(
    program: Program, times: NDArray[np.int64], types: NDArray[Any], columns: Mapping[str, NDArray[Any]], first: int = 0
) -> Batch:
    """Many events at little cost. Text is a numpy array of bytes, all of one length; offsets count from `first`."""
    batch = Batch(len(program.fields))
    times = np.ascontiguousarray(times, np.int64)
    zeros, offsets = np.zeros(len(times), np.int32), np.arange(first, first + len(times), dtype=np.int64)
    arrays = (times, zeros, zeros, offsets)
    kernel().samovar_batch_rows_set(batch.handle, len(times), *(array.ctypes.data for array in arrays))
    _fill(batch, -1, types)
    for place, name in enumerate(program.fields):
        if name in columns:
            _fill(batch, place, columns[name])
    return batch


def _fill(batch: Batch, column: int, values: NDArray[Any]) -> None:
    values = np.ascontiguousarray(values)
    offsets = None
    if values.dtype.kind == "S":
        offsets = np.arange(len(values) + 1, dtype=np.int64) * values.dtype.itemsize
    kind = {"S": TEXT, "i": INT, "f": FLOAT, "b": BOOL}[values.dtype.kind]
    kernel().samovar_batch_fill(batch.handle, column, kind, values.ctypes.data, address_of(offsets), None)


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Options:
    """What `States` and `samovar match` can be told; the oracle takes the same."""

    flush: bool = True
    show_suppressed: bool = False
    max_partials: int = 1000
    max_events: int = 10_000
    max_matches: int = 1000
    tunables: Tunables = DEFAULTS

    def states(self, program: Program) -> States:
        return States(
            program,
            max_partials=self.max_partials,
            max_events=self.max_events,
            max_matches=self.max_matches,
            show_suppressed=self.show_suppressed,
            tunables=self.tunables,
        )

    def end_of(self, batch: Batch) -> int:
        return END_OF_TIME if self.flush or not len(batch) else int(batch.time.max())


@dataclass
class Store:
    """Rows as a store keeps them: written one by one, None deletes."""

    rows: Rows = field(default_factory=dict)

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


def find(program: Program, events: Sequence[Fields | None], options: Options = Options(), **names: str) -> list[Match]:  # noqa: B008 - frozen
    """All matches of events in any order, as `samovar match` gives them."""
    batch = in_order(arrived(program, events, **names))
    return list(step(options.states(program), batch, options.end_of(batch)))


def matches_of(text: str, events: Sequence[Fields | None], **options: Any) -> list[Match]:
    """All matches of one rule."""
    return find(program_of(text), events, Options(**options))


def replayed(
    program: Program,
    batches: Iterable[Batch],
    slack_ms: int | None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> tuple[list[Match], list[LateLine]]:
    """Events in the order of their arrival, repaired within the slack."""
    late: list[LateLine] = []
    replay = EventReplay(
        program,
        slack_ms=slack_ms,
        flush=options.flush,
        max_partials=options.max_partials,
        max_events=options.max_events,
        max_matches=options.max_matches,
        show_suppressed=options.show_suppressed,
        on_late=late.append,
        tunables=options.tunables,
    )
    found = [match for batch in batches for match in replay.feed(batch)]
    found += [match for matches in replay.finish() for match in matches]
    return found, late


def loaded(program: Program, rows: Rows, options: Options = Options()) -> States:  # noqa: B008 - frozen
    states = options.states(program)
    states.load(rows)
    return states


# ---------------------------------------------------------------- comparing


def same(one: Any, other: Any) -> bool:
    """Equal values of equal types; fractions up to what the order of adding does to them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def shown(match: Match) -> Match:
    """A match without what the oracle does not make: its id and the rule's version."""
    return {name: value for name, value in match.items() if name not in ("id", "version")}


def as_set(matches: Iterable[Match]) -> list[str]:
    return sorted(json.dumps(match, sort_keys=True) for match in matches)
