"""What is wrong with the tasks of a service file, seen next to its streams and on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile
from samovar.service.config.tasks import TaskSettings
from samovar.tasks.user.loading import file_of

Found = tuple[tuple[str | int, ...], str, str | None, str | None]  # as settings_check.Fault


def emit_topics(settings: ServiceFile) -> dict[str, dict[str, str]]:
    """By task, the topics that it writes and no stream is: by the names it knows them by."""
    found: dict[str, dict[str, str]] = {}
    for name, task in settings.tasks.items():
        own = {to: emit for to, emit in task.emits.items() if to not in settings.streams}
        found[name] = {to: emit.topic or f"{settings.service}-{to}" for to, emit in own.items()}
    return found


def emitted_topics(settings: ServiceFile) -> dict[str, int]:
    """Topics that tasks write and no stream is, with their retention in ms."""
    named = emit_topics(settings)
    return {topic: settings.tasks[name].emits[to].retention_ms for name in named for to, topic in named[name].items()}


def task_faults(settings: ServiceFile) -> Iterator[Found]:
    """All that is wrong, in no order."""
    for name, task in settings.tasks.items():
        yield from _stream_faults(settings, name, task)
        yield from _emit_faults(settings, name, task)
        yield from _time_faults(name, task)
        yield from _class_faults(settings, name, task)
    yield from _circles(settings.tasks)


def _stream_faults(settings: ServiceFile, name: str, task: TaskSettings) -> Iterator[Found]:
    for number, stream in enumerate(task.streams):
        place = ("tasks", name, "streams", number)
        if stream not in settings.streams:
            tip = did_you_mean(stream, settings.streams)
            yield place, f"there is no stream `{stream}`", ", ".join(settings.streams) or None, tip


def _emit_faults(settings: ServiceFile, name: str, task: TaskSettings) -> Iterator[Found]:
    for to, emit in task.emits.items():
        stream = settings.streams.get(to)
        place = ("tasks", name, "emits", to)
        if stream is not None and emit.topic is not None:
            yield (*place, "topic"), f"`{to}` is a stream, whose topic is given there", None, "remove it here"


def _time_faults(name: str, task: TaskSettings) -> Iterator[Found]:
    if task.window_ms == 0:
        yield ("tasks", name, "window"), "a window needs some time", "window: 1h", None
    for store, spec in task.stores.items():
        if spec.ttl_ms == 0:
            yield ("tasks", name, "stores", store, "ttl"), "a time to live needs some time", "ttl: 30d", None


def _class_faults(settings: ServiceFile, name: str, task: TaskSettings) -> Iterator[Found]:
    module = task.source.partition(":")[0]
    near = did_you_mean(f"{module}.py", [path.name for path in settings.folder.glob("*.py")])
    if near and "." not in module and not file_of(module, settings.folder).is_file():
        yield ("tasks", name, "class"), f"there is no {module}.py next to the service file", None, near


def _circles(tasks: Mapping[str, TaskSettings]) -> Iterator[Found]:
    """A task that, through others or not, reads what it writes would never come to an end."""
    for name, task in tasks.items():
        for to in task.emits:
            if _reaches(tasks, to, name, set()):
                hint = "events would go round for ever: write to another stream"
                yield ("tasks", name, "emits", to), f"the task {name} reads what it writes to `{to}`", None, hint


def _reaches(tasks: Mapping[str, TaskSettings], stream: str, name: str, seen: set[str]) -> bool:
    if stream in seen:
        return False
    seen.add(stream)
    readers = [other for other, task in tasks.items() if stream in task.streams]
    return name in readers or any(_reaches(tasks, to, name, seen) for other in readers for to in tasks[other].emits)
