"""A user's code at work: which of its methods is called when, and what becomes of a call that raises.

    an event at T:    timers before T and windows that end by T, in order of their times; then `process`
    event time at W:  timers before W and windows that end by W

So a timer at T is called after all events of time T, a window that ends at T before any of them, and how the input was
cut into batches makes no difference. A call that raises has done nothing: its writes, emits and timers are undone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from samovar.changelog.log import Headers, Pair
from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.engine.order import NO_TIME
from samovar.state.errors import StoreError
from samovar.state.stack import Stack
from samovar.state.store import Store
from samovar.state.ttl import UnknownRowVersionError
from samovar.tasks.input.user_source import UserEvent
from samovar.tasks.model.plan import TaskSpec
from samovar.tasks.model.user_task import ClosableTask, Event, InitableTask, TimerTask, WindowableTask
from samovar.tasks.user.context import Phase, TaskContext
from samovar.tasks.user.stores import json_bytes
from samovar.tasks.user.timers import OWN, Timers

# What is not a fault of the user's code: it ends the container, which begins again from what is committed.
NOT_THE_USERS = (StoreError, UnknownRowVersionError, Refused, LogUnavailable)

MOST_CHARACTERS = 4_000
OURS = Path(__file__).resolve().parent.parent  # frames in here are not the user's


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that raised. Without an event it was a timer's or a window's, and `record` says which."""

    fault: UserFault
    record: Pair
    event: Event | None = None
    headers: Headers = ()  # that a letter keeps of its record


@dataclass
class UserOutput:
    """What the user's code did since the last commit, next to its stores."""

    emitted: dict[str, list[Pair]] = field(default_factory=dict)  # by topic
    skipped: int = 0  # records that were emitted before a rewind
    failures: list[Failure] = field(default_factory=list)


class Calls:
    """One object of the user's class, over the stores of its task. `done` is all since it was last taken."""

    def __init__(self, spec: TaskSpec, partition: int, store: Store, cache_bytes: int) -> None:
        self.spec = spec
        self.partition = partition
        self.stack = Stack(store, cache_bytes)
        self.timers = Timers(self.stack.rows(OWN), self.stack.index(OWN))
        self.done = UserOutput()
        self.has_emitted: Callable[[Phase, int], bool] = lambda _phase, _now: False  # before a rewind
        try:
            self._object = spec.make()
        except Exception as error:
            raise _call_refusal(spec, "__init__", error) from error
        if spec.window_ms is not None and not isinstance(self._object, WindowableTask):
            raise Refused(
                "task-class",
                f"the task {spec.name} has a `window`, and its class {spec.source} has no method of that name",
                "Write `def window(self, ctx)`, or take `window` out of the service file.",
            )
        # Asked once: whether an object has a protocol's methods is slow to find out.
        self._timer = self._object.on_timer if isinstance(self._object, TimerTask) else None
        self._end_window = self._object.window if isinstance(self._object, WindowableTask) else None
        self._context = TaskContext(spec, partition, self.stack, self.timers, has_timers=self._timer is not None)

    def begin(self, now: int) -> None:
        if isinstance(self._object, InitableTask):
            self._once(Phase.INIT, now, self._object.init)

    def close(self, now: int) -> None:
        if isinstance(self._object, ClosableTask):
            self._once(Phase.CLOSE, now, self._object.close)

    def _once(self, phase: Phase, now: int, call: Callable[[TaskContext], None]) -> None:
        self._context.enter(phase, 0 if now == NO_TIME else now)
        try:
            call(self._context)
        except NOT_THE_USERS:
            raise
        except Exception as error:
            raise _call_refusal(self.spec, call.__name__, error) from error
        finally:
            self._context.leave()

    def run(self, given: Iterable[UserEvent], watermark: int) -> None:
        """Take events in order; then let event time pass."""
        for given_event in given:
            event = given_event.event
            self._pass_to(event.time)
            fault = self._call(Phase.PROCESS, event.time, partial(self._object.process, event, self._context))
            if fault is not None:
                self.done.failures.append(Failure(fault, given_event.record, event, given_event.headers))
        if watermark > NO_TIME:
            self._pass_to(watermark)

    def is_due(self, watermark: int) -> bool:
        """Whether something is to be called when event time is there."""
        end = self._window_end
        return (end is not None and end <= watermark) or (
            self._timer is not None and self.timers.next_time() < watermark
        )

    @property
    def _window_end(self) -> int | None:
        """None also where a window is still open and the task has none any more."""
        return None if self.spec.window_ms is None else self.timers.window_end

    def _pass_to(self, now: int) -> None:
        while True:
            end = self._window_end
            if end is not None and end > now:
                end = None
            timer = None if self._timer is None else self.timers.first_before(now if end is None else end)
            if timer is not None and self._timer is not None:
                at, name = timer
                self.timers.delete(name)
                self._call_alone(Phase.TIMER, at, partial(self._timer, name, self._context), {"timer": name, "at": at})
            elif end is not None and self._end_window is not None:
                self.timers.window_end = None
                self._call_alone(Phase.WINDOW, end, partial(self._end_window, self._context), {"window": end})
            else:
                return

    def _call_alone(self, phase: Phase, now: int, call: Callable[[], None], what: dict[str, Any]) -> None:
        """A timer or a window, which is called once, whatever comes of it."""
        self.stack.keep()
        fault = self._call(phase, now, call)
        if fault is not None:
            told = json_bytes({"task": self.spec.name, "partition": self.partition, **what})
            self.done.failures.append(Failure(fault, (self.spec.name.encode(), told)))

    def _call(self, phase: Phase, now: int, call: Callable[[], None]) -> UserFault | None:
        """All that the call does is kept, or nothing."""
        self._context.enter(phase, now)
        try:
            call()
        except NOT_THE_USERS:
            raise
        except Exception as error:
            self._context.leave()
            self.stack.undo()
            return fault_of(error)
        emitted = self._context.leave()
        if emitted and self.has_emitted(phase, now):
            self.done.skipped += len(emitted)
            emitted = []
        for topic, pair in emitted:
            self.done.emitted.setdefault(topic, []).append(pair)
        if phase is not Phase.WINDOW and self.spec.window_ms is not None and self._window_end is None:
            self.timers.window_end = now - now % self.spec.window_ms + self.spec.window_ms
        self.stack.keep()
        return None


def _call_refusal(spec: TaskSpec, method: str, error: Exception) -> Refused:
    fault = fault_of(error)
    return Refused(
        "task-failed",
        f"`{method}` of the task {spec.name} ({spec.source}) raised {fault.message}",
        "Fix the code and start again: nothing was processed, and nothing is lost.",
        fault.trace.replace("\n", "\n  "),
    )


@dataclass(frozen=True)
class UserFault:
    """`message` is one line; `trace` begins where the user's code was called."""

    message: str
    trace: str


def fault_of(error: BaseException) -> UserFault:
    frames = traceback.extract_tb(error.__traceback__)
    first = next((place for place, frame in enumerate(frames) if not _is_ours(frame)), len(frames))
    theirs = [frame for frame in frames[first:] if not _is_ours(frame)]
    said = "".join(traceback.format_exception_only(error)).strip()
    last = theirs[-1] if theirs else None
    where = "" if last is None else f" ({Path(last.filename).name}:{last.lineno} in {last.name})"
    trace = "".join(traceback.format_list(frames[first:])) + said
    return UserFault(said[:MOST_CHARACTERS] + where, trace[-MOST_CHARACTERS:])


def _is_ours(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename).resolve()
    return path.parent.parent == OURS and path.parent.name in ("state", "tasks")
