"""Tasks of your own in the service file, as frozen data: names, kinds and defaults. For readers: docs/tasks.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from samovar.service.config.types import DurationMs, Model, RetentionMs, TopicName, shown, wrong

D = 86_400_000
CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z")
TASK_NAME = re.compile(r"[a-z][a-z0-9_-]{0,79}\Z")  # it becomes part of topics' and folders' names
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")
REPARTITIONED = "by-"  # how the stages begin that the service makes itself


def read_task_name(name: str) -> str:
    if name.startswith(REPARTITIONED):
        wrong(f"{shown(name)} cannot be a task's name", hint=f"`{REPARTITIONED}...` is the service's own")
    if not TASK_NAME.match(name):
        wrong(f"{shown(name)} cannot be a task's name", expected="a letter, then a-z, 0-9, `_` and `-`")
    return name


def read_class(value: Any) -> str:
    if isinstance(value, str) and CLASS.match(value):
        return value
    tip = None
    if isinstance(value, str) and "." in value and ":" not in value:
        module, _, name = value.rpartition(".")
        tip = f"write {module.removesuffix('.py')}:{name}"
    return wrong(
        f"{shown(value)} names no class", expected="profiles:CardProfiles, for that class in profiles.py", hint=tip
    )


def read_stream_names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        wrong(f"{shown(value)} names no streams", expected="streams: [purchase]")
    return tuple(dict.fromkeys(names))


def read_named(value: Any) -> Mapping[str, Any]:
    """Names, each with settings or with none: `[a, b]` is `{a: {}, b: {}}`."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, Mapping):
        return {name: {} if settings is None else settings for name, settings in value.items()}
    return wrong(f"{shown(value)} names nothing", expected="[a, b], or a map with settings for each")


def read_plain_name(name: str) -> str:
    if not PLAIN_NAME.match(name):
        wrong(f"{shown(name)} cannot be a name here", expected="letters, digits, `_`, `-` and `.`")
    return name


def read_emit(value: Any) -> Any:
    return value if isinstance(value, Mapping) else {"topic": value}


class EmitSettings(Model):
    """Where a task writes: the stream of that name, or a topic of its own."""

    topic: TopicName | None = None
    retention_ms: RetentionMs = Field(7 * D, alias="retention")


class StoreSettings(Model):
    """A named store. Rows go after their time to live, in event time."""

    ttl_ms: DurationMs | None = Field(None, alias="ttl")


PlainName: TypeAlias = Annotated[str, BeforeValidator(read_plain_name)]
TaskName: TypeAlias = Annotated[str, BeforeValidator(read_task_name)]


class TaskSettings(Model):
    """A class of the user's at work on streams, with stores of its own."""

    source: Annotated[str, BeforeValidator(read_class)] = Field(alias="class")
    streams: Annotated[tuple[str, ...], BeforeValidator(read_stream_names)]
    emits: Annotated[
        Mapping[PlainName, Annotated[EmitSettings, BeforeValidator(read_emit)]], BeforeValidator(read_named)
    ] = {}
    stores: Annotated[Mapping[PlainName, StoreSettings], BeforeValidator(read_named)] = {}
    window_ms: DurationMs | None = Field(None, alias="window")
    params: Mapping[str, Any] = {}
