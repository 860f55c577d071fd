"""Samovar keeps state warm: stateful event processing with a rule language.

    rules = samovar.load_rules("rules/")
    result = rules.run("events.jsonl")

    class Count(samovar.Task):                      # a user-defined task: docs/tasks.md
        def process(self, event, ctx): ...

    samovar.register_spark(spark)                   # the format "samovar", to read and to write: docs/spark.md

The names below are loaded when they are first used, so that importing samovar costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samovar.patterns.api import BadEvent, Match, Result, RuleError, Rules, check, load_rules
    from samovar.tasks.model.user_task import (
        ClosableTask,
        Context,
        Event,
        InitableTask,
        NamedStore,
        Task,
        TimerTask,
        WindowableTask,
    )

__version__ = "0.1.0"
__all__ = [
    "BadEvent",
    "ClosableTask",
    "Context",
    "Event",
    "InitableTask",
    "Match",
    "NamedStore",
    "Result",
    "RuleError",
    "Rules",
    "Task",
    "TimerTask",
    "WindowableTask",
    "__version__",
    "check",
    "load_rules",
    "register_spark",
]
_OF_TASKS = {name for name in __all__ if name.endswith("Task")} | {"Context", "Event", "NamedStore"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Only when it is needed, and only what is needed.
        module = import_module("samovar.tasks.model.user_task" if name in _OF_TASKS else "samovar.patterns.api")
        return getattr(module, name)
    raise AttributeError(f"module 'samovar' has no attribute {name!r}")


def register_spark(spark: Any) -> None:
    """Make the format `samovar` known to a Spark session, to read, to stream and to write: docs/spark.md."""
    import_module("samovar.service.spark.frames.frame").register_spark(spark)


def __dir__() -> list[str]:
    return sorted(__all__)
