"""The context of a user's task. It gathers what one call does, so that a call that fails did nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from samovar.changelog.log import Pair
from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.decode import lookup
from samovar.state.stack import Stack
from samovar.tasks.model.plan import Emit, TaskSpec
from samovar.tasks.model.user_task import Key, Value
from samovar.tasks.user.stores import MOST_VALUE_BYTES, BadValueError, Values, json_bytes, key_bytes, record_key
from samovar.tasks.user.timers import Timers

LAST_TIME_MS = 1 << 61  # no timer can be later


class Phase(Enum):
    """Which of its methods a task is in; between two calls in none."""

    NONE = "outside of a call"
    INIT = "in `init`"
    CLOSE = "in `close`"
    PROCESS = "in `process`"
    TIMER = "in `on_timer`"
    WINDOW = "in `window`"


class NotAllowedError(RuntimeError):
    """A task asked for what it may not have, or not here."""


class TaskContext:
    """The one `Context` of a task's object. The source of truth for what the call at hand emitted."""

    def __init__(self, spec: TaskSpec, partition: int, stack: Stack, timers: Timers, *, has_timers: bool) -> None:
        self._spec = spec
        self.name, self.partition, self.params = spec.name, partition, spec.params
        self._timers = timers
        self._has_timers = has_timers
        self._now = 0
        self._phase = Phase.NONE
        self._emitted: list[tuple[str, Pair]] = []  # by the call at hand
        self._stores = {
            name: Values(stack.store(name, ttl_ms=store.ttl_ms, now=lambda: self._now), self._refuse)
            for name, store in spec.stores.items()
        }

    @property
    def now(self) -> int:
        return self._now

    def store(self, name: str) -> Values:
        if name not in self._stores:
            raise NotAllowedError(self._unknown("store", name, "stores", self._stores))
        return self._stores[name]

    def emit(self, to: str, key: Key, value: Value) -> None:
        self._refuse()
        if to not in self._spec.emits:
            raise NotAllowedError(self._unknown("stream or topic to emit to", to, "emits", self._spec.emits))
        place = self._spec.emits[to]
        pair = _record(to, place, key, value)
        self._emitted.append((place.topic, pair))

    def timer(self, name: str, at: int) -> None:
        self._refuse()
        if not self._has_timers:
            raise NotAllowedError("a task that sets timers has a method `on_timer(name, ctx)`")
        if not isinstance(at, int) or isinstance(at, bool) or abs(at) > LAST_TIME_MS:
            raise BadValueError(f"a timer's time is event time in whole ms, not {at!r}")
        key_bytes(name)
        # A timer that sets itself again would otherwise be called for ever at one moment.
        earliest = self._now + (self._phase is Phase.TIMER)
        self._timers.put(name, max(at, earliest))

    def cancel(self, name: str) -> None:
        self._refuse()
        key_bytes(name)
        self._timers.delete(name)

    def _refuse(self) -> None:
        if self._phase not in (Phase.PROCESS, Phase.TIMER, Phase.WINDOW):
            raise NotAllowedError(
                f"a task writes, emits and sets timers only while it is called, not {self._phase.value}"
            )

    def _unknown(self, what: str, name: str, setting: str, known: Mapping[str, Any]) -> str:
        tip = did_you_mean(str(name), known) or f"name it under `{setting}` of the task in the service file"
        return f"the task {self._spec.name} has no {what} `{name}`: {tip}"

    def enter(self, phase: Phase, now: int) -> None:
        self._phase, self._now = phase, now

    def leave(self) -> list[tuple[str, Pair]]:
        """The call is over; what it emitted."""
        self._phase = Phase.NONE
        emitted, self._emitted = self._emitted, []
        return emitted


def _record(to: str, place: Emit, key: Key, value: Value) -> Pair:
    data = bytes(value) if isinstance(value, bytes | bytearray) else None if value is None else json_bytes(value)
    text = record_key(key)
    size = len(text or b"") + len(data or b"")
    if size > MOST_VALUE_BYTES:
        # The topic would not take it, and the whole commit would fail, again and again.
        raise BadValueError(f"a record for `{to}` has {size:,} bytes, and at most {MOST_VALUE_BYTES:,} are written")
    if isinstance(value, dict) and place.key is not None:
        # A record under another key would lie in another partition than the state of its key.
        own = lookup(value, place.key.split("."))
        wanted = record_key(own)
        if wanted is None or wanted != text:
            raise BadValueError(
                f"the stream `{to}` is keyed by `{place.key}`, which is {own!r} in the record:"
                f" emit it with that key, not {key!r}"
            )
    if isinstance(value, dict) and place.time is not None and lookup(value, place.time.split(".")) is None:
        raise BadValueError(f"a record of the stream `{to}` needs its time in `{place.time}`: usually ctx.now")
    if place.encode is not None and data is not None and not isinstance(value, bytes | bytearray):
        data = place.encode(data)
    return text, data
