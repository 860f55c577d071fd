"""What a service's tasks of its own are to be: from the service file or from a test, frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.tasks.model.user_task import Task


@dataclass(frozen=True)
class Emit:
    """Where emitted records go. `key` and `time` are the fields of a stream of the same service, which reads them, and
    `encode` makes its bytes of JSON where it is in another format; ValueError: no value of the stream's schema.
    """

    topic: str
    key: str | None = None
    time: str | None = None
    encode: Callable[[bytes], bytes] | None = None
    among: int | None = None  # partitions, where the service reads it with no more than these


@dataclass(frozen=True)
class StoreSpec:
    """A named store. Rows stay for ever without a time to live, in event time since they were last written."""

    ttl_ms: int | None = None


@dataclass(frozen=True)
class TaskSpec:
    """One task: how its objects are made, and what they may use. One that is `alone` has no main stage before it."""

    name: str
    make: Callable[[], Task]
    source: str  # as the service file names the class
    version: str
    emits: Mapping[str, Emit] = field(default_factory=dict)
    stores: Mapping[str, StoreSpec] = field(default_factory=dict)
    window_ms: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
