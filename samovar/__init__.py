"""Samovar keeps state warm: stateful event processing with a rule language.

    rules = samovar.load_rules("rules/")
    result = rules.run("events.jsonl")

The names below are loaded when they are first used, so that importing samovar costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samovar.patterns.api import BadEvent, Match, Result, RuleError, Rules, check, load_rules

__version__ = "0.1.0"
__all__ = ["BadEvent", "Match", "Result", "RuleError", "Rules", "__version__", "check", "load_rules"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from samovar.patterns import api  # noqa: PLC0415 - only when it is needed

        return getattr(api, name)
    raise AttributeError(f"module 'samovar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
