"""Recorded events through a program to its matches, the same lines in the same order however the input is cut.

    replay = Replay(program, slack_ms=5_000)
    for data in blocks:
        batch = lines.take(data)           # bytes of JSON lines to a batch
        write(replay.feed(batch).lines)
    for found in replay.finish():
        write(found.lines)

Without slack nothing is known to be in order before the end, so all events are kept and `finish` does the work; with
it, memory holds what the slack spans. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import Batch, Int64s, Messages, lines_of
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import (
    END_OF_TIME,
    MAX_EVENTS,
    MAX_MATCHES,
    MAX_PARTIALS,
    NOTHING,
    Matches,
    States,
    step,
)
from samovar.patterns.engine.order import NO_TIME, Buffer, drain, order
from samovar.patterns.syntax.tree import Overlap, Rule, SequenceForm, Skip

MAX_LINE_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not an event. `number` counts from 1, as editors do; `column` too, in characters."""

    number: int
    reason: str
    column: int | None
    kind: str = ""  # one of the codes of samovar.patterns.engine.decode, or none

    def __str__(self) -> str:
        where = f"{self.number}" if self.column is None else f"{self.number}:{self.column}"
        return f"{where}: {self.reason}"


class Lines:
    """Cuts bytes into lines and decodes them. Bytes may come in pieces of any size; a line's number is its offset."""

    def __init__(self, decoder: Decoder, on_bad: Callable[[BadLine], None], max_line_bytes: int = MAX_LINE_BYTES):
        self.decoder = decoder
        self.on_bad = on_bad
        self.max_line_bytes = max_line_bytes
        self.count = 0  # lines so far
        self._rest = b""
        self._started = False
        self._too_long = False  # inside a line that has been given up

    def take(self, data: bytes) -> Batch:
        """The events of all lines that are now complete."""
        if not self._started:
            data, self._rest = self._rest + data, b""
            if len(data) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(data):
                self._rest = data
                return self.decoder.batch()
            data = data.removeprefix(BYTE_ORDER_MARK)
            self._started = True
        if self._too_long:
            data = self._skip_line(data)
        batch = self.decoder.batch()
        cut = data.rfind(b"\n") + 1
        if cut:
            # Only the line that began in an earlier piece is copied; the others are read where they lie.
            first = data.find(b"\n") + 1 if self._rest else 0
            self._decode(self._rest + data[:first], batch)
            self._decode(memoryview(data)[first:cut], batch)
            self._rest = b""
        self._rest += data[cut:]
        if len(self._rest) > self.max_line_bytes:
            self._rest, self._too_long = b"", True
        return batch

    def end(self) -> Batch:
        """The last line, where the input does not end with a line end."""
        batch = self.decoder.batch()
        if self._too_long:
            self._skip_line(b"\n")
        self._decode(self._rest, batch)
        self._rest = b""
        return batch

    def _skip_line(self, data: bytes) -> bytes:
        end = data.find(b"\n") + 1
        if not end:
            return b""
        self._too_long = False
        self.count += 1
        self.on_bad(self._long_line(self.count))
        return data[end:]

    def _long_line(self, number: int) -> BadLine:
        return BadLine(number, f"the line is longer than {self.max_line_bytes:,} bytes", None)

    def _decode(self, data: bytes | memoryview, batch: Batch) -> None:
        if not data:
            return
        messages = lines_of(data)
        long = np.flatnonzero(messages.ends - messages.starts > self.max_line_bytes)
        if len(long):
            ends = messages.ends.copy()
            ends[long] = messages.starts[long]  # an empty message, which makes no event
            messages = Messages(messages.data, messages.starts, ends)
        first, self.count = self.count, self.count + len(messages)
        verdicts = self.decoder.decode(batch, messages, offsets=np.arange(first, self.count), copy=True)
        too_long = set(long.tolist())
        for row in np.flatnonzero(verdicts["code"]).tolist():
            if row in too_long:
                self.on_bad(self._long_line(first + row + 1))
                continue
            fault = self.decoder.bad(verdicts[row], messages[row])
            if fault.code not in ("EMPTY", "BLANK"):
                self.on_bad(BadLine(first + row + 1, fault.reason, fault.column, fault.code))


@dataclass(frozen=True, slots=True)
class LateLine:
    """An event that came too late: its offset (a line number from 0), and how far behind event time it was."""

    offset: int
    by_ms: int


class EventReplay:
    """Runs a program over recorded events. The source of truth for its states, and for the order of its output."""

    def __init__(  # noqa: PLR0913 - options of a run, by name
        self,
        program: Program,
        *,
        slack_ms: int | None = None,
        flush: bool = True,
        max_partials: int = MAX_PARTIALS,
        max_events: int = MAX_EVENTS,
        max_matches: int = MAX_MATCHES,
        show_suppressed: bool = False,
        on_late: Callable[[LateLine], None] = lambda _: None,
        after_step: Callable[[Batch], None] = lambda _: None,
        topics: Sequence[str] = (),
        tunables: Tunables = DEFAULTS,
    ) -> None:
        """Without `slack_ms` events may stand in any order. Without `flush`, event time ends at the largest time.

        With `topics`, one per stream of the batches, matches name events as those of a service do.
        """
        self.program = program
        self.states = States(
            program, max_partials=max_partials, max_events=max_events, max_matches=max_matches, hold=True,
            show_suppressed=show_suppressed, topics=topics, tunables=tunables,
        )  # fmt: skip
        self.flush = flush
        self.until_ms = NO_TIME  # without `flush`, event time ends no earlier than this
        self.on_late = on_late
        self.after_step = after_step
        # Enough rows to pay for the call, few enough to stay in the processor's cache.
        self._chunk_rows = tunables.replay_rows
        self.events = 0
        self.late = 0
        self._columns = len(program.fields)
        # Few where one event can complete many matches: their lines are in memory at once.
        self._step_rows = tunables.burst_records if any(may_burst(plan.rule) for plan in program.rules) else None
        self._largest = NO_TIME
        self._held: list[Batch] = []
        self._buffer = None if slack_ms is None else Buffer(columns=self._columns, slack_ms=(slack_ms,))

    def feed(self, batch: Batch) -> Matches:
        """Take events in the order of their arrival. The batch belongs to the replay from now on."""
        parts = [found for found in self.take(batch) if len(found)]
        if len(parts) < 2:
            return parts[0] if parts else NOTHING
        ends = np.cumsum([0, *(len(part.text) for part in parts)])
        key_ends = np.cumsum([0, *(len(part.key_text) for part in parts)])
        return Matches(
            b"".join(part.text for part in parts),
            np.concatenate([part.ends + at for part, at in zip(parts, ends, strict=False)]),
            b"".join(part.key_text for part in parts),
            np.concatenate([part.key_ends + at for part, at in zip(parts, key_ends, strict=False)]),
        )

    def take(self, batch: Batch) -> Iterator[Matches]:
        """As `feed`, with the matches in parts of a bounded size."""
        rows = len(batch)
        if not rows:
            return
        self.events += rows
        self._largest = max(self._largest, int(batch.time.max()))
        # Small batches are gathered: a step for each of them would cost too much.
        if self._held and (self._buffer is not None or len(self._held[-1]) + rows <= self._chunk_rows // 4):
            self._held[-1].append(batch, np.arange(rows))
        else:
            self._held.append(batch)
        # Releasing copies all that waits; letting half as much gather before keeps that at a few copies an event.
        if self._buffer is None or len(self._held[-1]) < len(self._buffer.pending) // 2:
            return
        yield from self._release(self._held.pop(), self._buffer)

    def take_ordered(self, batch: Batch) -> Iterator[Matches]:
        """As `take`, of events that stand in their order already, over all batches: nothing is kept."""
        if len(batch):
            self.events += len(batch)
            self._largest = max(self._largest, int(batch.time[-1]))
            yield from self._step(batch, int(batch.time[-1]))

    def finish(self) -> Iterator[Matches]:
        """There is no more input: what is still to come, in order."""
        if self._buffer is None:
            for batch in self._in_order():
                yield from self._step(batch, int(batch.time[-1]))
        else:
            while self._held:
                yield from self._release(self._held.pop(), self._buffer)
            rest = drain(self._buffer)
            yield from self._step(rest, int(rest.time[-1]) if len(rest) else self._buffer.watermark())
        self.states.hold(False)
        yield from self._step(Batch(self._columns), END_OF_TIME if self.flush else self.end_ms)

    def _step(self, batch: Batch, watermark: int) -> Iterator[Matches]:
        rows, size, times = len(batch), self._step_rows or max(1, len(batch)), batch.time
        for first in range(0, max(1, rows), size):
            end = min(first + size, rows)
            yield step(self.states, batch, watermark if end == rows else int(times[end - 1]), (first, end))
        self.after_step(batch)

    @property
    def end_ms(self) -> int:
        """Where event time stands at the end, without `flush`."""
        return max(self._largest, self.until_ms)

    def _release(self, batch: Batch, buffer: Buffer) -> Iterator[Matches]:
        ordered = order(batch, buffer)
        self.late += len(ordered.late)
        for offset, by in zip(batch.offset[ordered.late].tolist(), ordered.late_by_ms.tolist(), strict=True):
            self.on_late(LateLine(offset, by))
        yield from self._step(ordered.released, ordered.watermark)

    def _in_order(self) -> Iterator[Batch]:
        """All events by (time, offset), in chunks. Those that already lie so are not copied."""
        held, self._held = self._held, []
        if not held:
            return
        if _are_in_order(held):
            held.reverse()
            while held:
                yield held.pop()  # which is free again after its step
            return
        sizes = [len(batch) for batch in held]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        places = np.lexsort(
            (np.concatenate([batch.offset for batch in held]), np.concatenate([batch.time for batch in held]))
        )
        for first in range(0, len(places), self._chunk_rows):
            yield gathered(held, starts, places[first : first + self._chunk_rows], self._columns)


def may_burst(rule: Rule) -> bool:
    """Whether one event can complete more than one match of a key."""
    form = rule.form
    return isinstance(form, SequenceForm) and form.overlap is not Overlap.LATEST and form.skip is not Skip.PAST_LAST


def _are_in_order(batches: list[Batch]) -> bool:
    time, offset = NO_TIME, -1
    for batch in batches:
        times, offsets = batch.time, batch.offset
        if (int(times[0]), int(offsets[0])) < (time, offset):
            return False
        later = np.diff(times)
        if (later < 0).any() or ((later == 0) & (np.diff(offsets) < 0)).any():
            return False
        time, offset = int(times[-1]), int(offsets[-1])
    return True


def gathered(batches: list[Batch], starts: Int64s, places: Int64s, columns: int) -> Batch:
    """The rows at these places of all batches laid end to end, in this order."""
    chunk = Batch(columns)
    source = np.searchsorted(starts, places, side="right") - 1
    by_source = np.argsort(source, kind="stable")
    for number in np.unique(source).tolist():
        chunk.append(batches[number], places[source == number] - starts[number])
    back = np.empty(len(places), np.int64)
    back[by_source] = np.arange(len(places))
    chunk.select(back)
    return chunk
