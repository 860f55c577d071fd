"""`step`: a batch of events in order, through all rules, to matches. The run state is apart, in `States`.

    program = compile_rules(rules)
    states = States(program)
    found = step(states, batch, watermark)

The work is the kernel's (native/match/engine.h); this module is its face in Python. A replay of the same events in
the same order gives the same matches, however they were cut into batches, and whether or not the states were stored
and loaded in between.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import (
    BOOL,
    FLOAT,
    INT,
    NIL,
    TEXT,
    Batch,
    Handle,
    Int64s,
    KernelCount,
    KernelMemoryError,
    array_at,
    kernel,
    typed,
)
from samovar.patterns.engine.compile import KernelFunction, Program
from samovar.patterns.syntax.tree import Scalar

MAX_PARTIALS = 1_000
MAX_EVENTS = 10_000
MAX_MATCHES = 1_000  # per event, key and rule
NEVER = (1 << 63) - 1
END_OF_TIME = 1 << 62  # the watermark that closes everything
ID_BYTES = 32
ALL_ROWS, CHANGED_ROWS, CANONICAL_ROWS = range(3)
STEP_BYTES = 3
VERDICTS = {  # as in native/match/budget.h
    1: "one event made it hold more memory than a step may",
    2: "one event caused more work than a step may do",
    4: "there was no more memory",
}

_SERIALS = count()
_OVER_BUDGET, _FUNCTION_FAILED, _OTHER_BATCH = -1, -2, -3  # in place of a count, as in native/match/capi.cpp


class _Payload(ctypes.Union):
    _fields_ = (("i", c_int64), ("d", c_double), ("s", c_void_p))


class _Value(ctypes.Structure):
    _fields_ = (("tag", c_uint32), ("len", c_uint32), ("payload", _Payload))


_CALL = ctypes.CFUNCTYPE(None, c_int64, POINTER(_Value), c_int64, POINTER(_Value))

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    # words, number, text, size; fault
    "samovar_program_new": (c_void_p, [c_void_p, c_size_t, c_char_p, c_size_t, POINTER(c_char_p)]),
    "samovar_program_free": (None, [c_void_p]),
    "samovar_states_new": (Handle, [c_void_p, _CALL, c_int64, c_int64, c_int64]),
    "samovar_mute": (None, [c_void_p, c_int, c_int, c_int64, c_int64]),
    "samovar_budget": (KernelCount, [c_void_p, c_int64, c_int64, c_int64, c_char_p, c_size_t]),
    "samovar_marked": (c_int, [c_void_p]),
    "samovar_verdict": (c_int, [c_void_p, POINTER(c_int), POINTER(c_void_p), POINTER(c_size_t)]),
    "samovar_topic": (KernelCount, [c_void_p, c_char_p, c_size_t]),
    "samovar_show_suppressed": (None, [c_void_p, c_int]),
    "samovar_hold": (None, [c_void_p, c_int]),
    # handle; events in a chunk, in a header, bytes of a header's row, rows evaluated together, rows looked at together
    # for keys, results of functions that are remembered
    "samovar_sizes": (None, [c_void_p, *[c_int64] * 6]),
    "samovar_share": (None, [c_void_p, c_uint64, c_uint64]),
    "samovar_hash_keys": (KernelCount, [c_void_p, c_void_p, c_int64, c_void_p]),
    "samovar_states_free": (None, [c_void_p]),
    "samovar_step": (c_int64, [c_void_p, c_void_p, c_size_t, c_size_t, c_int64, c_int]),
    "samovar_found": (c_void_p, [c_void_p, c_void_p]),
    "samovar_render": (c_int64, [c_void_p, c_void_p, c_size_t]),
    "samovar_failure": (c_void_p, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "samovar_lines": (c_void_p, [c_void_p]),
    "samovar_line_ends": (c_void_p, [c_void_p]),
    "samovar_counters": (None, [c_void_p, c_int, c_void_p]),
    "samovar_tallies": (None, [c_void_p, c_int, c_void_p]),
    "samovar_dropped": (c_int64, [c_void_p]),
    "samovar_live": (c_size_t, [c_void_p]),
    "samovar_line_keys": (c_void_p, [c_void_p]),
    "samovar_line_key_ends": (c_void_p, [c_void_p]),
    "samovar_dump": (c_int64, [c_void_p, c_int, c_int64]),
    "samovar_deadlines": (c_size_t, [c_void_p]),
    "samovar_deadlines_of": (KernelCount, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "samovar_cold": (c_int64, [c_void_p, c_void_p]),
    "samovar_unknown": (KernelCount, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "samovar_next_deadline": (c_int64, [c_void_p]),
    "samovar_row_data": (c_void_p, [c_void_p]),
    "samovar_row_ends": (c_void_p, [c_void_p]),
    "samovar_bytes": (c_size_t, [c_void_p]),
    "samovar_load": (c_int64, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "samovar_describe": (Handle, [c_void_p, c_int, c_char_p, c_size_t, POINTER(c_size_t)]),
    "samovar_trace": (KernelCount, [c_void_p, c_char_p, c_size_t]),
    "samovar_trace_notes": (c_void_p, [c_void_p, POINTER(c_size_t)]),
}


@cache
def _library() -> Any:
    return typed(kernel(), SIGNATURES)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """What a step found, in order of (at, place of the last event): lines of JSON, newlines included, in one text."""

    text: bytes
    ends: Int64s  # where each line ends
    key_text: bytes  # the keys, end to end: one text as it is, anything else as a JSON array
    key_ends: Int64s

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.lines)

    @property
    def lines(self) -> list[bytes]:
        return self.text.splitlines(keepends=True)

    @property
    def keys(self) -> list[bytes]:
        return _cut(self.key_text, self.key_ends)

    def records(self) -> list[tuple[bytes, bytes]]:
        """Key and line of each, without its newline: what goes to a topic."""
        return list(zip(self.keys, self.text.split(b"\n"), strict=False))


NOTHING = Matches(b"", np.empty(0, np.int64), b"", np.empty(0, np.int64))


class MatchHeader(NamedTuple):
    """What filters decide by. `row` is the match's number in its step."""

    row: int
    rule: str
    version: str
    id: str
    start: int
    at: int
    is_muted: bool


@dataclass(frozen=True, slots=True, eq=False)
class PendingMatches:
    """The matches of a step, in order, before they are rendered; good until the next step of the same states."""

    states: States
    count: int

    def __len__(self) -> int:
        return self.count

    def headers(self) -> list[MatchHeader]:
        facts = np.empty((self.count, 4), np.int64)
        found = _library().samovar_found(self.states.handle, facts.ctypes.data)
        if found is None:
            raise MemoryError(f"no memory for the ids of {self.count} matches")
        ids = ctypes.string_at(found, self.count * ID_BYTES).decode()
        rules = [(each.rule.id, each.version) for each in self.states.program.rules]
        return [
            MatchHeader(row, *rules[rule], ids[row * ID_BYTES : (row + 1) * ID_BYTES], start, at, bool(muted))
            for row, (rule, start, at, muted) in enumerate(facts.tolist())
        ]

    def render(self, rows: Sequence[int] | None = None) -> Matches:
        """These of the matches, or all, with their messages. Raises BatchTooLarge where that is more than a step may
        hold. It is done once: a large line is not kept.
        """
        library, handle = _library(), self.states.handle
        which = None if rows is None else np.array(rows, np.int64)
        size = self.count if which is None else len(which)
        if not size:
            return NOTHING
        count = self.states.checked(library.samovar_render(handle, None if which is None else which.ctypes.data, size))
        ends = array_at(library.samovar_line_ends(handle), count, np.dtype(np.int64), self.states).copy()
        key_ends = array_at(library.samovar_line_key_ends(handle), count, np.dtype(np.int64), self.states).copy()
        keys = ctypes.string_at(library.samovar_line_keys(handle), int(key_ends[-1]))
        return Matches(ctypes.string_at(library.samovar_lines(handle), int(ends[-1])), ends, keys, key_ends)


@dataclass(frozen=True, slots=True)
class _Counted:
    matches: int
    suppressed: int
    dropped_partials: int
    dropped_events: int
    dropped_matches: int
    no_key: int


@dataclass(frozen=True, slots=True)
class Counters(_Counted):
    """What a rule did so far. Nothing is dropped without being counted here."""

    live_partials: int


@dataclass(frozen=True, slots=True)
class Tallies(_Counted):
    """The same without what would have to be counted over all states, and the time that went to the rule alone."""

    ns: int


class KeyShare(NamedTuple):
    """A part of all keys, by their hashes: the `number`-th of so many parts of about equal size.

    What happens to a key is the same in whichever share it is, and every key is in one. Events without a key are of the
    first. Hashes are the same on every machine and in every version: samples that are kept rely on it.
    """

    number: int = 0
    of: int = 1

    def part(self, number: int, of: int) -> KeyShare:
        """One of so many parts of this one."""
        return KeyShare(self.number * of + number, self.of * of)

    def has(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of the keys with these hashes are of it; 0 is no key."""
        first, last = map(np.uint64, self.hashes())
        found: NDArray[np.bool_] = (hashes >= max(first, np.uint64(1))) & (hashes <= last)
        return found

    def hashes(self) -> tuple[int, int]:
        return (self.number << 64) // self.of, ((self.number + 1 << 64) // self.of) - 1


ALL_KEYS = KeyShare()


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step may take before it is abandoned, in counts that are the same on every machine. It never changes what
    a rule finds: a step is done whole, or not at all.

    `event_bytes` and `event_work` are what one event, or timer, may cause in one key of one rule; past an eighth of
    them the kernel writes the rule and the key to the file `mark`. `step_bytes` are matches of the whole batch. A unit
    of work takes about a nanosecond.
    """

    event_bytes: int = 256 << 20
    event_work: int = 2_000_000_000
    step_bytes: int = DEFAULTS.step_bytes
    mark: Path | None = None


UNLIMITED = StepBudget(NEVER, NEVER, NEVER)


class RuleFailure(Exception):
    """A step was abandoned because of one rule. The states are of no more use; what is stored is as it was."""

    hint = "Nothing of the batch was taken: see what this machine lacks, or leave the rule out, and try again."

    def __init__(self, rule: str, version: str, key: tuple[Scalar, ...], reason: str) -> None:
        super().__init__(f"rule {rule}, key {list(key)}: {reason}")
        self.rule, self.version, self.key, self.reason = rule, version, key, reason


class FunctionFailure(RuleFailure):
    """A function that the kernel leaves to Python raised an exception, which is the cause of this one."""


class BudgetExceeded(RuleFailure):
    """One event took more memory or work in one key of a rule than a step's budget has."""


class BatchTooLarge(Exception):
    """A batch found more than is held at once. The states are of no more use; fewer events at a time will do."""


class StateError(ValueError):
    """Stored rows that cannot be read: damaged, or written by a newer format."""


class ProgramError(ValueError):
    """Words that are not a program: damaged, or written by another compiler than the kernel was made for."""


class States:
    """The run state of a program: partial matches, windows, sessions and histories of every key."""

    def __init__(
        self,
        program: Program,
        *,
        max_partials: int = MAX_PARTIALS,
        max_events: int = MAX_EVENTS,
        max_matches: int = MAX_MATCHES,
        topics: Sequence[str] = (),
        hold: bool = False,
        show_suppressed: bool = False,
        tunables: Tunables = DEFAULTS,
    ) -> None:
        """With `topics`, one per stream, matches name events as [topic, partition, offset]; otherwise by offset alone.

        With `hold`, matches at the very watermark wait for the next step, so that the order of output does not depend
        on where the input was cut; without it they come at once. Suppressed matches are counted, and only with
        `show_suppressed` given out.
        """
        if max_partials < 1 or max_events < 1 or max_matches < 1:
            raise ValueError("max_partials, max_events and max_matches are at least 1")
        library = _library()
        self.serial = next(_SERIALS)  # no other states of this process have it, also when these are gone
        self.program = program
        self._limits = max_partials, max_events
        self._words = np.array(program.words, np.int64)
        fault, words = c_char_p(), self._words
        made = library.samovar_program_new(words.ctypes.data, len(words), program.text, len(program.text), byref(fault))
        if fault.value is not None:
            raise ProgramError(f"the compiled rules are not a program that the kernel can run: {fault.value.decode()}")
        if made is None:
            raise KernelMemoryError("there is no memory for the compiled rules")
        self._program: int = made
        self._topics = tuple(topics)
        self._functions = _Functions(program.functions)
        self._call = _CALL(self._functions.answer)
        self._gave_up = 0  # what the kernel said in place of a count
        self.handle: int = library.samovar_states_new(self._program, self._call, max_partials, max_events, max_matches)
        for topic in topics:
            library.samovar_topic(self.handle, topic.encode(), len(topic.encode()))
        chunks = tunables.chunk_events, tunables.header_events, tunables.header_bytes
        library.samovar_sizes(self.handle, *chunks, tunables.slice_rows, tunables.cold_rows, tunables.memo_results)
        library.samovar_hold(self.handle, int(hold))
        library.samovar_show_suppressed(self.handle, int(show_suppressed))
        finalize(self, _free, self.handle, self._program)

    def hold(self, wanted: bool) -> None:
        """Whether matches at the watermark wait from now on; those that wait come with the next step."""
        _library().samovar_hold(self.handle, int(wanted))

    def limit(self, budget: StepBudget) -> None:
        """What a step may take from now on."""
        mark = b"" if budget.mark is None else os.fsencode(budget.mark)
        limits = budget.event_bytes, budget.event_work, budget.step_bytes
        _library().samovar_budget(self.handle, *limits, mark, len(mark))

    def only(self, share: KeyShare) -> None:
        """Work on the keys of a share only, from the beginning: events of other keys go by."""
        _library().samovar_share(self.handle, *share.hashes())

    def key_hashes(self, batch: Batch, keyspec: int) -> NDArray[np.uint64]:
        """By row, the hash of its key, by one of the program's keys; 0 where it has none."""
        found = np.zeros(len(batch), np.uint64)
        self.checked(_library().samovar_hash_keys(self.handle, batch.handle, keyspec, found.ctypes.data))
        return found

    def take_marked(self) -> bool:
        """Whether a mark was written since this was last asked."""
        return bool(_library().samovar_marked(self.handle))

    def mute(self, rule: int, *, shadow: bool, before_at_ms: int | None, after_start_ms: int | None) -> None:
        """Say which matches of a rule raise no alert: their headers say so, and their lines have no message."""
        before = -NEVER if before_at_ms is None else before_at_ms
        after = NEVER if after_start_ms is None else after_start_ms
        _library().samovar_mute(self.handle, rule, int(shadow), before, after)

    def live(self) -> int:
        """How many states are held: one per rule and key, and one a history function and key."""
        return int(_library().samovar_live(self.handle))

    def counters(self, rule: int) -> Counters:
        out = (c_int64 * 7)()
        _library().samovar_counters(self.handle, rule, out)
        return Counters(*out)

    def tallies(self, rule: int) -> Tallies:
        out = (c_int64 * 7)()
        _library().samovar_tallies(self.handle, rule, out)
        return Tallies(*out)

    def dropped(self) -> int:
        """Partial matches, events and matches that limits let go of, of all rules and history functions."""
        return int(_library().samovar_dropped(self.handle))

    def dropped_history(self) -> int:
        out = (c_int64 * 7)()
        _library().samovar_counters(self.handle, -1, out)
        return int(out[3])

    # ------------------------------------------------------------ rows

    def rows(self) -> dict[bytes, bytes]:
        """Every state as packed rows (a header and chunks), which `load` takes back."""
        return {key: value for key, value in self._dump(ALL_ROWS, 0) if value is not None}

    def changed_rows(self) -> list[tuple[bytes, bytes | None]]:
        """Rows that changed since the last call; None deletes a row."""
        return self._dump(CHANGED_ROWS, 0)

    def deadlines(self) -> list[tuple[bytes, bytes]]:
        """Of the changed rows just given out, when their states must be looked at, where that is new: (time, key).

        Times are 8 bytes that sort as the numbers do. A store keeps them to know which keys to bring in when event
        time passes; an entry that is too early does no harm.
        """
        return [(time, key or b"") for time, key in self._rows(_library().samovar_deadlines(self.handle))]

    def deadlines_of(self, rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The same for any stored rows: what an index of them would hold."""
        data, ends = _end_to_end(list(rows))
        count = _library().samovar_deadlines_of(self.handle, data, ends.ctypes.data, len(ends) // 2)
        return [(time, key or b"") for time, key in self._rows(count)]

    def load(self, rows: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]) -> None:
        """Take stored rows back. All rows of a key come in one call."""
        pairs = sorted(rows.items() if isinstance(rows, Mapping) else rows)
        data, ends = _end_to_end(pairs)
        if not self.checked(_library().samovar_load(self.handle, data, ends.ctypes.data, len(pairs))):
            raise StateError(
                "the stored state cannot be read: it is damaged, or a newer version wrote it\n"
                "  Restore it from the changelog, or run the version that wrote it."
            )

    def uncached_keys(self, batch: Batch) -> list[bytes]:
        """Keys of the batch that were never looked for in the store; they count as looked for from now on.

        Only for states that were not loaded whole: their rows are loaded before the batch goes to `step`.
        """
        return [key for key, _ in self._rows(self.checked(_library().samovar_cold(self.handle, batch.handle)))]

    def unknown_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys that were never looked for; they count as looked for from now on."""
        ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), dtype=np.int64)
        count = _library().samovar_unknown(self.handle, b"".join(keys), ends.ctypes.data, len(keys))
        return [key for key, _ in self._rows(count)]

    def next_deadline(self) -> int:
        """Event time at which something may happen with no event, at the earliest; NEVER where nothing can."""
        return int(_library().samovar_next_deadline(self.handle))

    def memory_bytes(self) -> int:
        """Memory that the states take, roughly. Looks at every state."""
        return int(_library().samovar_bytes(self.handle))

    def digest(self, watermark: int) -> str:
        """A hash of the state as rules can still see it at this watermark; how it came about does not show."""
        return digest_of_rows(self.program, sorted(self.rows().items()), watermark, self._limits)

    def _dump(self, which: int, watermark: int) -> list[tuple[bytes, bytes | None]]:
        self._refuse_if_failed()
        return self._rows(self.checked(_library().samovar_dump(self.handle, which, watermark)))

    def _rows(self, count: int) -> list[tuple[bytes, bytes | None]]:
        if not count:
            return []
        ends = array_at(_library().samovar_row_ends(self.handle), 2 * count, np.dtype(np.int64), self).copy()
        gone = ends < 0
        ends[gone] = -1 - ends[gone]
        data = ctypes.string_at(_library().samovar_row_data(self.handle), int(ends[-1]))
        pieces: list[bytes | None] = list(_cut(data, ends))
        for place in np.flatnonzero(gone).tolist():
            pieces[place] = None
        return list(zip(pieces[0::2], pieces[1::2], strict=True))  # type: ignore[arg-type]  # a key is never gone

    # ------------------------------------------------------------ failures

    def checked(self, count: int) -> int:
        """What the kernel counted; raises where it gave up instead."""
        if count == _OTHER_BATCH:
            raise ValueError(f"a batch with fewer columns than the {len(self.program.fields)} fields of the program")
        self._gave_up = min(count, self._gave_up)
        self._refuse_if_failed()
        return count

    def _refuse_if_failed(self) -> None:
        """States are half way through the batch that failed: nothing of them may be stored, or go on.

        The exception is made each time. One that is kept holds the states by its traceback, and they hold it: such a
        circle is never freed where the collector is off, as in a container.
        """
        if self._gave_up == _FUNCTION_FAILED:
            raise self._what_failed()
        if self._gave_up == _OVER_BUDGET:
            rule, key, size = c_int(), c_void_p(), c_size_t()
            verdict = _library().samovar_verdict(self.handle, byref(rule), byref(key), byref(size))
            if verdict == STEP_BYTES or rule.value < 0:
                raise BatchTooLarge("the matches of one batch take more memory than a step may hold")
            plan, values = self.program.rules[rule.value], decode_key(ctypes.string_at(key, size.value))
            raise BudgetExceeded(plan.rule.id, plan.version, values, VERDICTS[verdict])

    def _what_failed(self) -> BaseException:
        out, size = (c_int64 * 5)(), c_size_t()
        key = ctypes.string_at(_library().samovar_failure(self.handle, out, byref(size)), size.value)
        rule, has_event, stream, partition, offset = out
        function, cause = self._functions.failed
        if not isinstance(cause, Exception):  # Ctrl-C, or what a signal's handler raised
            return cause
        # What it was asked for is not told: it may be personal, and so may be the text of the exception.
        detail = f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""
        event = "/".join(map(str, [*self._topics[stream : stream + 1], partition, offset]))
        place = "" if not has_event else f" at event {event if self._topics else offset}"
        at = self.program.rules[rule]
        reason = f"{function} raised {type(cause).__name__}{detail}{place}"
        failure = FunctionFailure(at.rule.id, at.version, decode_key(key), reason)
        failure.__cause__ = cause
        return failure

    # ------------------------------------------------------------ looking inside

    def partials(self, rule: int, key: bytes) -> list[dict[str, Any]]:
        """The live partial matches of a key (see `encode_key`): how far each is, and what it waits for."""
        size = c_size_t()
        data = _library().samovar_describe(self.handle, rule, key, len(key), byref(size))
        found: list[dict[str, Any]] = json.loads(ctypes.string_at(data, size.value) or b"[]")
        return found

    def trace(self, key: bytes | None) -> None:
        """From now on, note what happens to one key."""
        _library().samovar_trace(self.handle, key, len(key or b""))

    def notes(self) -> list[dict[str, Any]]:
        size = c_size_t()
        data = _library().samovar_trace_notes(self.handle, byref(size))
        return [json.loads(line) for line in ctypes.string_at(data, size.value).splitlines()]


def digest_of_rows(
    program: Program,
    rows: Iterable[tuple[bytes, bytes]],
    watermark: int,
    limits: tuple[int, int] = (MAX_PARTIALS, MAX_EVENTS),
    tunables: Tunables = DEFAULTS,
) -> str:
    """As `States.digest`, of stored rows in the order of their keys; memory holds a part of them at a time."""
    digest = hashlib.sha256()
    for key, value in canonical_rows(program, rows, watermark, limits, tunables):
        digest.update(_varint(len(key)) + key + _varint(len(value)) + value)
    return digest.hexdigest()


def canonical_rows(
    program: Program,
    rows: Iterable[tuple[bytes, bytes]],
    watermark: int,
    limits: tuple[int, int] = (MAX_PARTIALS, MAX_EVENTS),
    tunables: Tunables = DEFAULTS,
) -> Iterator[tuple[bytes, bytes]]:
    """Stored rows as a digest sees them: a row a state, trimmed to the watermark; equal where the states are."""

    def canonical(part: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        # On a copy: what lies behind the watermark is let go of there.
        copy = States(program, max_partials=limits[0], max_events=limits[1], tunables=tunables)
        copy.load(part)
        for key, value in sorted(copy._dump(CANONICAL_ROWS, watermark)):
            yield key, value or b""

    part: list[tuple[bytes, bytes]] = []
    for row, value in rows:
        # A part never divides a key.
        if len(part) >= tunables.digest_rows and not row.startswith(_key_of_row(part[-1][0])):
            yield from canonical(part)
            part = []
        part.append((row, value))
    if part:
        yield from canonical(part)


def _key_of_row(row: bytes) -> bytes:
    """A row's key up to the end of the key's own bytes, length included."""
    size = shift = at = 0
    while True:
        size |= (row[at] & 0x7F) << shift
        at += 1
        if row[at - 1] < 0x80:
            return row[: at + size]
        shift += 7


def step(states: States, batch: Batch, watermark: int, rows: tuple[int, int] | None = None) -> Matches:
    """Take a batch of events, in order, through all rules; then let event time pass up to the watermark.

    Timers fire where they belong between the events of their key; a timer fires when its deadline is below the
    watermark. No event of a later batch may be older than the watermark. With `rows`, only these of the batch are
    taken, from the first up to the second.

    Raises a RuleFailure, or BatchTooLarge, where the step was abandoned: see `States.limit`. The states are then of no
    more use.
    """
    return find_matches(states, batch, watermark, rows).render()


def find_matches(
    states: States, batch: Batch, watermark: int, rows: tuple[int, int] | None = None, *, defer_messages: bool = False
) -> PendingMatches:
    """As `step`, for one who leaves some of the matches out; with `defer_messages`, only what is rendered gets one."""
    states.checked(0)
    first, end = rows or (0, len(batch))
    count = _library().samovar_step(states.handle, batch.handle, first, end, watermark, int(defer_messages))
    return PendingMatches(states, states.checked(count))


def encode_key(values: Iterable[Scalar]) -> bytes:
    """A key's bytes, as in native/match/keys.h."""
    out = bytearray()
    for value in values:
        if isinstance(value, bool):
            out += b"b" + bytes([value])
        elif isinstance(value, str):
            data = value.encode()
            out += b"t" + len(data).to_bytes(4, "big") + data
        elif isinstance(value, float) and not value.is_integer():
            out += b"f" + struct.pack(">d", value)
        elif value is None:
            raise ValueError("null is not a key: such events belong to no key")
        else:
            out += b"i" + (int(value) + (1 << 63)).to_bytes(8, "big")
    return bytes(out)


def decode_key(data: bytes) -> tuple[Scalar, ...]:
    """The values of a key's bytes.

    >>> decode_key(encode_key(["c1", 7, True, 0.5]))
    ('c1', 7, True, 0.5)
    """
    values: list[Scalar] = []
    at = 0
    while at < len(data):
        kind, at = data[at : at + 1], at + 1
        if kind == b"b":
            values.append(bool(data[at]))
            at += 1
        elif kind == b"t":
            size = int.from_bytes(data[at : at + 4], "big")
            values.append(data[at + 4 : at + 4 + size].decode("utf-8", "replace"))
            at += 4 + size
        elif kind == b"f":
            values.append(float(struct.unpack(">d", data[at : at + 8])[0]))
            at += 8
        else:
            values.append(int.from_bytes(data[at : at + 8], "big") - (1 << 63))
            at += 8
    return tuple(values)


def _free(states: int, program: int) -> None:
    _library().samovar_states_free(states)
    _library().samovar_program_free(program)


class _Functions:
    """What the kernel calls. It does not know the states that it serves: in a circle they would outlive their use."""

    def __init__(self, functions: tuple[KernelFunction, ...]) -> None:
        self.functions = functions
        self.text = b""  # of the last answer, until the kernel has copied it
        # Where nothing else is noted, an exception came between two lines of `answer`, so by a signal.
        self.failed: tuple[str, BaseException] = ("", KeyboardInterrupt())

    def answer(self, function: int, args: Any, count: int, out: Any) -> None:
        """The kernel takes an answer only if its tag was set, which is done last."""
        called = self.functions[function]
        try:
            self.text = _from_python(called.call(*[_to_python(args[k]) for k in range(count)]), out[0])
        except BaseException as error:  # in C it would be lost; `step` raises it
            self.failed = called.name, error


def _to_python(value: Any) -> Scalar:
    tag = value.tag
    if tag == TEXT:
        return ctypes.string_at(value.payload.s, value.len).decode("utf-8", "replace") if value.len else ""
    if tag == INT:
        return int(value.payload.i)
    if tag == FLOAT:
        return float(value.payload.d)
    return bool(value.payload.i) if tag == BOOL else None


def _from_python(value: Scalar, out: Any) -> bytes:
    """Fills in an answer, its tag last; the text that it points to is returned, and must be kept."""
    text, tag = b"", NIL
    if isinstance(value, bool):
        out.payload.i, tag = int(value), BOOL
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        out.payload.i, tag = value, INT
    elif isinstance(value, (int, float)):
        out.payload.d, tag = float(value), FLOAT
    elif isinstance(value, str):
        text, tag = value.encode("utf-8", "replace"), TEXT
        out.payload.s, out.len = ctypes.cast(c_char_p(text), c_void_p), len(text)
    out.tag = tag
    return text


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _end_to_end(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, Int64s]:
    """Keys and values in one piece, and where each ends."""
    parts = [part for pair in pairs for part in pair]
    return b"".join(parts), np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), dtype=np.int64)


def _cut(data: bytes, ends: Int64s) -> list[bytes]:
    """Pieces that lie end to end."""
    places = ends.tolist()
    return [data[start:end] for start, end in zip([0, *places], places, strict=False)]
