"""Changes parts of an expression and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from samovar.patterns.syntax.tree import EXPRESSIONS, Expr, LongList


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with each part for which `change` gives another one replaced; inside those it does not look."""
    changed = change(expr)
    if changed is not None:
        return changed
    parts: dict[str, Any] = {}
    for item in fields(expr):
        value = getattr(expr, item.name)
        if isinstance(value, EXPRESSIONS):
            parts[item.name] = rewrite(value, change)
        elif isinstance(value, LongList):
            continue
        elif isinstance(value, tuple) and any(isinstance(each, EXPRESSIONS) for each in value):
            parts[item.name] = tuple(rewrite(each, change) for each in value)
    return replace(expr, **parts) if parts else expr
