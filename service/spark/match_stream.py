"""The matcher on a stream: keys in buckets, each with a state that Spark keeps from batch to batch.

A bucket's state has what the kernel stores of its keys, as a service does, and the events that wait for the watermark:

    1 byte      the format
    3 x u32     a check of what keys are spread by, number of rows, number of events that wait
    n x u32     the lengths of what follows
    ...         key and value of each row, then the events

A group of Spark's is such a bucket: 32 bits say which keys it is of, 32 bits its number. An event goes to one group for
each of the keys that rules have.

An event is a line: stream, partition, offset, and its fields as JSON. Those before the watermark go through the kernel
in the order of a service; a bucket is called again when the first that waits, or a timer, is due. States of rule
versions that are gone are left out where they are loaded, so that a changed rule, and no other, starts from nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from samovar.changelog.spark.stateful import GroupResult
from samovar.common.errors import Refused
from samovar.native.kernel import Batch, Int64s, joined
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import NEVER, States, step
from samovar.patterns.syntax.tree import Rule

FORMAT = 1
HEAD = struct.Struct("<BIII")
MS = "_ms"


@dataclass(frozen=True)
class StreamMatcher:
    """Rules with any keys, by what these are spread by."""

    by_keys: Mapping[int, BucketMatcher]

    def __call__(self, group: int, state: bytes | None, rows: list[str], watermark_ms: int) -> GroupResult:
        matcher = self.by_keys.get(group >> 32)
        if matcher is None:  # no rule has these keys any more
            return GroupResult(None, None, [])
        return matcher(state, rows, watermark_ms)


@dataclass(kw_only=True)
class BucketMatcher:
    """Rules over the events of one bucket at a time."""

    rules: tuple[Rule, ...]
    topics: tuple[str, ...]
    type: str
    spread: str  # what keys are spread by
    max_partials: int
    max_events: int
    max_matches: int

    def __call__(self, state: bytes | None, rows: list[str], watermark_ms: int) -> GroupResult:
        kept, waiting = ([], []) if state is None else self._unpack(state)
        states = States(
            self._program, max_partials=self.max_partials, max_events=self.max_events, max_matches=self.max_matches,
            topics=self.topics,
        )  # fmt: skip
        states.load(kept)
        batch, lines = self._decode([*waiting, *(row.encode() for row in rows)])
        times = batch.time
        due, later = np.flatnonzero(times < watermark_ms), np.flatnonzero(times >= watermark_ms)
        waits = [lines[row] for row in later.tolist()]
        call_at_ms = int(times[later].min()) if len(later) else NEVER
        order = np.lexsort((batch.offset[due], batch.partition[due], batch.stream[due], times[due]))
        batch.select(due[order].astype(np.int64))
        found = [line.decode() for line in step(states, batch, watermark_ms).lines]
        stored = list(states.rows().items())
        call_at_ms = min(call_at_ms, states.next_deadline())
        packed = self._pack(stored, waits) if stored or waits else None
        return GroupResult(packed, None if call_at_ms >= NEVER else call_at_ms, found)

    def __getstate__(self) -> dict[str, object]:
        """What is compiled stays here."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def _program(self) -> Program:
        return compile_rules(self.rules)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self._program.fields, MS, self.type, "")

    def _decode(self, lines: Sequence[bytes]) -> tuple[Batch, list[bytes]]:
        """Events and their lines, in one order. What is no event is left out."""
        batch, kept = self._decoder.batch(), []
        parts = [line.split(b" ", 3) for line in lines]
        place = np.array([part[:3] for part in parts], np.int64).reshape(-1, 3)
        if len(place) and place[:, 0].min() < 0:
            raise Refused("frame-option", "a row's `_topic` is none of the topics", "Name all of them: topics=[...].")
        for stream in np.unique(place[:, 0]).tolist():
            own: Int64s = np.flatnonzero(place[:, 0] == stream)
            partitions = np.ascontiguousarray(place[own, 1], np.int32)
            messages = joined([parts[row][3] for row in own.tolist()])
            offsets = np.ascontiguousarray(place[own, 2])
            codes = self._decoder.decode(batch, messages, stream, partitions, offsets, copy=True)["code"]
            kept += [lines[row] for row in own[codes == 0].tolist()]
        return batch, kept

    def _pack(self, rows: Sequence[tuple[bytes, bytes]], waiting: Sequence[bytes]) -> bytes:
        parts = [*chain.from_iterable(rows), *waiting]
        sizes = np.fromiter(map(len, parts), "<u4", len(parts))
        return HEAD.pack(FORMAT, self._check, len(rows), len(waiting)) + sizes.tobytes() + b"".join(parts)

    def _unpack(self, state: bytes) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        version, check, rows, waiting = HEAD.unpack_from(state)
        if version != FORMAT:
            what = "the states in the checkpoint were written by another version of samovar"
            raise Refused("format-newer", what, "Use that version, or begin with another checkpointLocation.")
        if check != self._check:
            what = "the checkpoint has states of rules with other keys, or in another number of buckets"
            hint = "Give the rules and `buckets` that it began with, or begin with another checkpointLocation."
            raise Refused("frame-option", what, hint)
        count = 2 * rows + waiting
        ends = np.cumsum(np.frombuffer(state, "<u4", count, HEAD.size), dtype=np.int64) + HEAD.size + 4 * count
        places = [HEAD.size + 4 * count, *ends.tolist()]
        parts = [state[places[n] : places[n + 1]] for n in range(count)]
        return list(zip(parts[: 2 * rows : 2], parts[1 : 2 * rows : 2], strict=True)), parts[2 * rows :]

    @property
    def _check(self) -> int:
        return check_of(self.spread)


def check_of(spread: str) -> int:
    return zlib.crc32(spread.encode())
