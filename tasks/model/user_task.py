"""Tasks of your own: what a programmer writes, and what it is given. Docs: docs/tasks.md.

    class Count(Task):
        def process(self, event: Event, ctx: Context) -> None:
            seen = ctx.store("seen")
            seen.put(event.key, seen.get(event.key, 0) + 1)

A capability is one more small protocol: a task has `process`, and of the others those that it needs. One object of the
class is made for every partition, and again after every restart: what must outlive that belongs in a store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

Key: TypeAlias = str | int | float | bool | bytes | None  # of an emitted record; text as the key field's is
Value: TypeAlias = Any  # what JSON can say, or bytes


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `time` is event time in ms; topic, partition and offset are where it stands in the log.

    >>> event = Event("purchase", "purchase", "c1", 1_000, {"card": "c1", "amount": 5}, "purchases", 0, 17)
    >>> event["amount"], event.get("country", "?"), "card" in event
    (5, '?', True)
    """

    stream: str
    type: str
    key: str
    time: int
    fields: Mapping[str, Any]
    topic: str
    partition: int
    offset: int

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)


class NamedStore(Protocol):
    """A task's store: texts to values. A value is what JSON can say, or bytes. What `get` gives is a copy."""

    def get(self, key: str, default: Any = None) -> Any: ...
    def put(self, key: str, value: Value) -> None: ...
    def delete(self, key: str) -> None: ...
    def range(self, start: str = "", end: str | None = None) -> Iterator[tuple[str, Any]]:
        """Pairs with start <= key < end, in the order of the keys' UTF-8 bytes."""

    def starting(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Pairs whose key begins so, in order."""


class Context(Protocol):
    """What a task may ask and do. All that it does is part of the commit that takes the event in, or did not happen."""

    @property
    def now(self) -> int:
        """Event time in ms: the event's own, the timer's, or the end of the window. Never the clock's."""

    @property
    def name(self) -> str:
        """The task's, as the service file has it."""

    @property
    def partition(self) -> int: ...
    @property
    def params(self) -> Mapping[str, Any]:
        """`params` of the task in the service file."""

    def store(self, name: str) -> NamedStore: ...
    def emit(self, to: str, key: Key, value: Value) -> None:
        """Write a record to a stream or topic that the service file names under `emits`."""

    def timer(self, name: str, at: int) -> None:
        """Call `on_timer` once event time has passed `at`, once. The same name set again replaces what was set."""

    def cancel(self, name: str) -> None:
        """Unset a timer; nothing where there is none."""


@runtime_checkable
class Task(Protocol):
    """Takes events, in event-time order, one at a time."""

    @abstractmethod
    def process(self, event: Event, ctx: Context) -> None: ...


@runtime_checkable
class InitableTask(Protocol):
    """Wants to prepare before the first event, also after every restart. It reads its stores, and writes nothing."""

    def init(self, ctx: Context) -> None: ...


@runtime_checkable
class WindowableTask(Protocol):
    """Wants to be called at the end of every period of event time in which something happened."""

    def window(self, ctx: Context) -> None: ...


@runtime_checkable
class TimerTask(Protocol):
    """Sets timers. They are called after all events of their time, and before any later one."""

    def on_timer(self, name: str, ctx: Context) -> None: ...


@runtime_checkable
class RepartitionableTask(Protocol):
    """Can be spread over another number of partitions (`samovar repartition`): it knows whose its rows are."""

    def key_of(self, store: str | None, name: str) -> str | None:
        """The key of the events that a row of a store, or a timer (store is None), belongs to. None: to no key; such a
        row must be the same in all partitions.
        """


@runtime_checkable
class ClosableTask(Protocol):
    """Wants to let go of what `init` took. It reads its stores, and writes nothing. Not called after a crash."""

    def close(self, ctx: Context) -> None: ...
