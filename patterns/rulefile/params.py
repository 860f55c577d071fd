"""The sections `params` and `lists` of a rule file, with the values that a service sets in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from samovar.common.suggest import did_you_mean
from samovar.patterns.semantics.scope import one_of
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import Scalar, Span
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap

MAX_LIST_ITEMS = 100_000

_NAME = re.compile(r"[^\W\d][\w-]*\Z")
_LEADING_ZERO = re.compile(r"[-+]?0\d+\Z")
_START = Span(1, 1, 1, 1)


def read_params(
    node: Node | None, given: Mapping[str, Any], report: Report
) -> tuple[dict[str, Scalar], frozenset[str]]:
    """The parameters, and the names of those that are times."""
    params: dict[str, Scalar] = {}
    durations: set[str] = set()
    for key, value in _entries(node, "params", report):
        if not isinstance(value, Text):
            hint = "lists of values stand under `lists`" if isinstance(value, List) else None
            report.error("bad-parameter", f"`{key.text}` must be a single value", value.span, hint=hint)
            continue
        ms = duration_ms(value.text) if value.plain else None
        if ms is not None:
            durations.add(key.text)
        params[key.text] = value.value if ms is None else ms
    for name, new in given.items():
        if _is_declared(name, params, node, "params", report):
            # Of the same kind as the one in the file.
            default = params[name]
            new = duration_ms(new) if name in durations and isinstance(new, str) else new
            same_kind = default is None or (new is not None and isinstance(new, str) == isinstance(default, str))
            if isinstance(default, bool) or isinstance(new, bool):
                same_kind = default is None or (isinstance(new, bool) and isinstance(default, bool))
            if same_kind and isinstance(new, None | bool | int | float | str):
                params[name] = new
            else:
                message = f"the value set for `{name}` is not of the kind of {default!r}"
                report.error("bad-parameter", message, node.span if node else _START)
    return params, frozenset(durations)


def read_lists(node: Node | None, given: Mapping[str, Any], report: Report) -> dict[str, tuple[Scalar, ...]]:
    lists: dict[str, tuple[Scalar, ...]] = {}
    for key, value in _entries(node, "lists", report):
        if isinstance(value, List):
            lists[key.text] = _items(key.text, value, report)
        else:
            lists[key.text] = ()
            report.error("bad-list", f"`{key.text}` must be a list", value.span, expected=f"{key.text}: [a, b]")
    for name, values in given.items():
        if _is_declared(name, lists, node, "lists", report):
            lists[name] = ()
            where = node.span if node else _START
            sound = isinstance(values, Sequence | frozenset | set) and not isinstance(values, str)
            if sound and len(values) > MAX_LIST_ITEMS:
                message = f"the list set for `{name}` has {len(values):,} values; at most {MAX_LIST_ITEMS:,}"
                report.error("too-long", message, where)
            elif sound and all(isinstance(value, None | bool | int | float | str) for value in values):
                # A set has no order of its own, and the version is over the values in order.
                lists[name] = tuple(sorted(values, key=repr) if isinstance(values, frozenset | set) else values)
            else:
                report.error("bad-list", f"the value set for `{name}` must be a list of single values", where)
    return lists


def _items(name: str, node: List, report: Report) -> tuple[Scalar, ...]:
    if len(node.items) > MAX_LIST_ITEMS:
        report.error("too-long", f"`{name}` has {len(node.items):,} values; at most {MAX_LIST_ITEMS:,}", node.span)
        return ()
    values: list[Scalar] = []
    for item in node.items:
        if not isinstance(item, Text):
            report.error("bad-list", f"`{name}` must be a list of single values", item.span)
            continue
        if item.plain and isinstance(item.value, bool):
            hint = f'quote it: "{item.text}"'
            report.warning("quote-it", f"`{item.text}` is a boolean here, not text", item.span, hint=hint)
        values.append(item.value)
    return tuple(values)


def warn_numbers(node: Node, report: Report) -> None:
    """Numbers with a leading zero, anywhere inside: a code such as 0742 loses its zero."""
    stack = [node]
    while stack and not report.full:
        top = stack.pop()
        if isinstance(top, YamlMap):
            stack.extend(value for _, value in top.entries)
        elif isinstance(top, List):
            stack.extend(top.items)
        elif top.plain and _LEADING_ZERO.match(top.text):
            hint = f'quote it: "{top.text}"'
            report.warning("quote-it", f"`{top.text}` is the number {top.value} here", top.span, hint=hint)


def _is_declared(name: str, known: Mapping[str, object], node: Node | None, section: str, report: Report) -> bool:
    if name in known:
        return True
    message = f"`{name}` is set from outside, but the rule has none under `{section}`"
    hint = did_you_mean(name, known)
    report.error("unknown-parameter", message, node.span if node else _START, expected=one_of(known), hint=hint)
    return False


def _entries(node: Node | None, section: str, report: Report) -> list[tuple[Text, Node]]:
    if node is None or (isinstance(node, Text) and node.value is None):
        return []
    if not isinstance(node, YamlMap):
        report.error("not-a-map", f"`{section}` maps names to values", node.span)
        return []
    for key, _ in node.entries:
        if not _NAME.match(key.text):
            message = f"`{key.text[:100]}` cannot be a name under `{section}`"
            report.error("bad-name", message, key.span, expected="letters, digits, _ and -")
    return [(key, value) for key, value in node.entries if _NAME.match(key.text)]
