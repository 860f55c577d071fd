"""Live alerts for many listeners: server-sent events that go on where a listener stopped.

An event's id is the position after it: the next offset of each partition of the alerts topic, as `12.0.7.3`. It means
the same on every node and after every restart; anyone who comes back with it gets what it missed from the index first.
A listener that does not keep up is cut off, and comes back the same way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from samovar.common.errors import Refused
from samovar.service.alerts.index import Alert, AlertsIndex
from samovar.service.alerts.query import since

QUEUE_MOST = 1_000  # alerts that wait for one listener
LISTENERS_MOST = 500
GATHER_S = 0.05
WRITES_PER_S = 1_000  # to all listeners together: where there are very many, alerts gather for longer
QUIET_S = 10.0  # until a comment says that the line still stands
MISSED_MOST = 5_000  # alerts that are sent to who comes back; older ones are searched for

Position = dict[int, int]


def position_text(position: Mapping[int, int]) -> str:
    """
    >>> position_text({0: 12, 1: 0, 2: 7})
    '12.0.7'
    """
    return ".".join(str(position[partition]) for partition in sorted(position)) or "0"


def read_position(text: str, partitions: int) -> Position:
    parts = text.split(".")
    if len(parts) != partitions or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        hint = f"Give the id of the last event that came, {partitions} numbers with dots between them; or none."
        raise Refused("bad-position", f"`{text[:80]}` is no position in the alerts", hint)
    return dict(enumerate(map(int, parts)))


class EventBatch:
    """Alerts that go out together. Listeners who want the same, and stand at the same place, share one text."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self.alerts = alerts
        self._texts: dict[Hashable, tuple[str, Position]] = {}

    def text(self, subscription: Subscription, place: Position) -> str:
        """For one listener, whose place moves on. What it got before, as missed, is left out."""
        shared = subscription.kind, tuple(place.items())
        known = self._texts.get(shared) if subscription.kind is not None else None
        if known is None:
            new = (each for each in self.alerts if each.offset >= place.get(each.partition, 0))
            known = "".join(subscription.event(each, place) for each in new), dict(place)
            if subscription.kind is not None:
                self._texts[shared] = known
        place.update(known[1])
        return known[0]


@dataclass(eq=False)
class Listener:
    """One who listens. What it gets is put here by the loop's thread."""

    is_allowed: Callable[[], bool]
    waiting: list[EventBatch] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False


class Broadcaster:
    """The source of truth for who listens, and up to where alerts were given out."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathered: list[Alert] = []
        self.cut_off = 0

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return len(self._listeners)

    def publish(self, alerts: Sequence[Alert]) -> None:
        """From any thread. What comes within a moment goes out together: a batch for every listener is what costs."""

        def gather(loop: asyncio.AbstractEventLoop) -> None:
            if not self._gathered:
                loop.call_later(max(GATHER_S, len(self._listeners) / WRITES_PER_S), self._deliver)
            self._gathered += alerts

        self._call(gather)

    def recheck(self) -> None:
        """From any thread: tokens or sessions changed, and those who may listen no more are cut off."""

        def cut_refused(_: asyncio.AbstractEventLoop) -> None:
            for listener in [each for each in self._listeners if not each.is_allowed()]:
                self._cut(listener)

        self._call(cut_refused)

    def _call(self, function: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """In the loop's thread, while it runs."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, loop)

    def _deliver(self) -> None:
        batch, self._gathered = EventBatch(self._gathered), []
        for listener in list(self._listeners):
            if sum(len(each.alerts) for each in listener.waiting) + len(batch.alerts) > QUEUE_MOST:
                self._cut(listener)
                self.cut_off += 1
            else:
                listener.waiting.append(batch)
                listener.news.set()

    def _cut(self, listener: Listener) -> None:
        listener.is_cut = True
        self._listeners.discard(listener)
        listener.news.set()

    def join(self, is_allowed: Callable[[], bool]) -> Listener:
        """In the loop's thread: nothing is delivered between this and reading the position."""
        if len(self._listeners) >= LISTENERS_MOST:
            hint = "Close some, or run another `samovar serve` next to this one."
            raise Refused("too-much-at-once", f"{LISTENERS_MOST} listeners are on live alerts already", hint)
        listener = Listener(is_allowed)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """What a listener wants: from where on, of which rules, of which key; `shown` makes an alert's JSON text. Those of
    the same `kind` have the same alerts, shown the same way.
    """

    start: Position | None
    rules: Sequence[str]
    key: str | None
    shown: Callable[[Alert], str]
    kind: Hashable = None
    versions: Sequence[str] | None = None  # of rules; None: all
    but_versions: Sequence[str] = ()
    is_allowed: Callable[[], bool] = lambda: True  # asked again whenever tokens change, and now and then

    def event(self, alert: Alert, place: Position) -> str:
        """The event of an alert, empty where it is not wanted. The place moves on."""
        place[alert.partition] = max(place.get(alert.partition, 0), alert.offset + 1)
        if (self.rules and alert.rule not in self.rules) or (self.key is not None and alert.key != self.key):
            return ""
        version = alert.match["version"]
        if version in self.but_versions or (self.versions is not None and version not in self.versions):
            return ""
        return f"id: {position_text(place)}\nevent: alert\ndata: {self.shown(alert)}\n\n"


async def listen(
    broadcaster: Broadcaster, index: AlertsIndex, current: Callable[[], Position], subscription: Subscription
) -> AsyncIterator[str]:
    """Events as text, for as long as the listener may."""
    listener = broadcaster.join(subscription.is_allowed)
    try:
        begun = dict(current())  # what came before is in the index, what comes after in the queue
        place = dict(begun if subscription.start is None else subscription.start)
        id = position_text(place)
        yield f"id: {id}\nevent: hello\ndata: {json.dumps({'position': id})}\n\n"
        if subscription.start is not None:
            missed = await asyncio.to_thread(since, index, subscription.start, begun)
            floors = await asyncio.to_thread(index.floors, index.topic)  # afterwards: what goes meanwhile is told
            gap = sum(max(floors.get(partition, 0) - offset, 0) for partition, offset in subscription.start.items())
            gap += max(len(missed) - MISSED_MOST, 0)
            if gap:
                yield f"event: gap\ndata: {json.dumps({'skipped': gap})}\n\n"
            for alert in missed[-MISSED_MOST:]:
                if listener.is_cut:
                    return
                if text := subscription.event(alert, place):
                    yield text
        while not listener.is_cut and listener.is_allowed():
            try:
                async with asyncio.timeout(QUIET_S):
                    await listener.news.wait()
            except TimeoutError:
                yield ": quiet\n\n"
                continue
            batches, listener.waiting = listener.waiting, []
            listener.news.clear()
            text = "".join(batch.text(subscription, place) for batch in batches)
            if text and not listener.is_cut:
                yield text
    finally:
        broadcaster.leave(listener)
