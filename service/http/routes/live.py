"""Live alerts for many listeners: server-sent events that go on where a listener stopped.

An event's id is the position after it: the next offset of each partition of the alerts topic, as `12.0.7.3`. It means
the same on every node and after every restart; anyone who comes back with it gets what it missed from the index first.
A listener that does not keep up is cut off, and comes back the same way.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        raise Refused(
            "bad-position",
            f"`{text[:80]}` is no position in the alerts",
            f"Give the id of the last event that came, {partitions} numbers with dots between them; or none.",
        )
    return dict(enumerate(map(int, parts)))


class EventBatch:
    """Alerts that go out together. Listeners who want the same, and stand at the same place, share one text."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self.alerts = alerts
        self._made: dict[Hashable, tuple[str, Position]] = {}

    def __len__(self) -> int:
        return len(self.alerts)

    def text(self, wish: Subscription, place: Position) -> str:
        """For one listener, whose place moves on."""
        shared = (wish.kind, tuple(place.items())) if wish.kind is not None else None
        known = self._made.get(shared) if shared is not None else None
        if known is None:
            known = "".join(_live(self.alerts, wish, place)), dict(place)
            if shared is not None:
                self._made[shared] = known
        place.update(known[1])
        return known[0]


@dataclass(eq=False)
class Listener:
    """One who listens. What it gets is put here by the loop's thread."""

    is_allowed: Callable[[], bool]
    waiting: list[EventBatch] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False

    def take(self) -> list[EventBatch]:
        found, self.waiting = self.waiting, []
        self.news.clear()
        return found


class Broadcaster:
    """The source of truth for who listens, and up to where alerts were given out."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.position: Position = {}
        self._gathered: list[Alert] = []
        self.cut_off = 0

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return len(self._listeners)

    def publish(self, alerts: Sequence[Alert], position: Mapping[int, int]) -> None:
        """From any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._gather, loop, list(alerts), dict(position))

    def _gather(self, loop: asyncio.AbstractEventLoop, alerts: Sequence[Alert], position: Position) -> None:
        """What comes within a moment goes out together: a piece for every listener is what costs."""
        if not self._gathered:
            loop.call_later(max(GATHER_S, len(self._listeners) / WRITES_PER_S), self._deliver)
        self._gathered += alerts
        self.position = position

    def _deliver(self) -> None:
        piece, self._gathered = EventBatch(self._gathered), []
        for listener in list(self._listeners):
            if sum(map(len, listener.waiting)) + len(piece) > QUEUE_MOST:
                listener.is_cut = True
                self.cut_off += 1
                self._listeners.discard(listener)
            else:
                listener.waiting.append(piece)
            listener.news.set()

    def recheck(self) -> None:
        """From any thread: tokens or sessions changed, and those who may listen no more are cut off."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cut_refused)

    def _cut_refused(self) -> None:
        for listener in [each for each in self._listeners if not each.is_allowed()]:
            listener.is_cut = True
            self._listeners.discard(listener)
            listener.news.set()

    def join(self, is_allowed: Callable[[], bool] = lambda: True) -> Listener:
        """In the loop's thread: nothing is delivered between this and reading `position`."""
        if len(self._listeners) >= LISTENERS_MOST:
            raise Refused(
                "too-much-at-once",
                f"{LISTENERS_MOST} listeners are on live alerts already",
                "Close some, or run another `samovar serve` next to this one.",
            )
        listener = Listener(is_allowed)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)


@dataclass(frozen=True)
class Subscription:
    """What a listener wants: from where on, of which rules, of which key; `shown` makes an alert's JSON text. Wishes of
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

    def has(self, alert: Alert) -> bool:
        if (self.rules and alert.rule not in self.rules) or (self.key is not None and alert.key != self.key):
            return False
        version = alert.match["version"]
        return version not in self.but_versions and (self.versions is None or version in self.versions)


async def listen(
    broadcaster: Broadcaster, index: AlertsIndex, current: Callable[[], Position], wish: Subscription
) -> AsyncIterator[str]:
    """Events as text, for as long as the listener may."""
    listener = broadcaster.join(wish.is_allowed)
    try:
        begun = dict(current())  # what came before is in the index, what comes after in the queue
        place = dict(begun if wish.start is None else wish.start)
        yield _event("hello", {"position": position_text(place)}, position_text(place))
        if wish.start is not None:
            missed = await asyncio.to_thread(lambda: list(since(index, wish.start or {}, begun)))
            gap = await asyncio.to_thread(_gap, index, wish.start)  # afterwards: what is let go of meanwhile is told
            if gap or len(missed) > MISSED_MOST:
                yield _event("gap", {"skipped": gap + max(len(missed) - MISSED_MOST, 0)}, None)
            for alert in missed[-MISSED_MOST:]:
                if listener.is_cut:
                    return
                _move(place, alert)
                if wish.has(alert):
                    yield _alert_event(alert, wish, place)
        while not listener.is_cut and listener.is_allowed():
            try:
                async with asyncio.timeout(QUIET_S):
                    await listener.news.wait()
            except TimeoutError:
                yield ": quiet\n\n"
                continue
            text = "".join(piece.text(wish, place) for piece in listener.take())
            if text and not listener.is_cut:
                yield text
    finally:
        broadcaster.leave(listener)


def _live(alerts: Sequence[Alert], wish: Subscription, place: Position) -> Iterator[str]:
    for alert in alerts:
        if alert.offset < place.get(alert.partition, 0):
            continue  # was among those that were missed
        _move(place, alert)
        if wish.has(alert):
            yield _alert_event(alert, wish, place)


def _move(place: Position, alert: Alert) -> None:
    place[alert.partition] = max(place.get(alert.partition, 0), alert.offset + 1)


def _gap(index: AlertsIndex, start: Position) -> int:
    """How many offsets a listener missed that the index no longer holds."""
    floors = index.floors(index.topic)
    return sum(max(floors.get(partition, 0) - offset, 0) for partition, offset in start.items())


def _alert_event(alert: Alert, wish: Subscription, place: Position) -> str:
    return f"id: {position_text(place)}\nevent: alert\ndata: {wish.shown(alert)}\n\n"


def _event(name: str, data: Mapping[str, Any], id: str | None) -> str:
    return (f"id: {id}\n" if id else "") + f"event: {name}\ndata: {json.dumps(data)}\n\n"
