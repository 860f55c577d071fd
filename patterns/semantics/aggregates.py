"""Aggregates over the events taken: `count(probe)`, `sum(probe.amount * 2)`, `distinct(ip)`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samovar.common.suggest import did_you_mean
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, Typed, one_of
from samovar.patterns.syntax.functions import AGGREGATES, ANY, BOOLEAN, HISTORY, NUMBER, TEXT
from samovar.patterns.syntax.tree import Aggregate, Call, Expr, Literal, Name, Span, walk


def resolve_aggregate(name: str, node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed:
    failed = Literal(None, span), AGGREGATES[name] or ANY
    if place.aggregates is None:
        _report_no_aggregate(name, place, span, bench)
        return failed
    if name == "count":
        return _count(node, place, span, bench) or failed
    if len(node.args) != 1:
        _report_arguments(name, node, place, span, bench)
        return failed
    target = _target(name, node.args[0], place, span, bench)
    if target is None:
        return failed
    types = place.readable[target].types if target else place.types
    inner = ExpressionContext(types, place.what, at=place.at, lets=place.lets, unreadable=_no_steps(place, target))
    value, kind = bench.resolve(_stripped(node.args[0], target), inner, bench)
    if name in ("sum", "avg", "stddev") and kind in (TEXT, BOOLEAN):
        hint = "distinct(...) counts different values"
        bench.report.error("not-a-number", f"`{name}` takes numbers; this is {kind}", span, hint=hint)
    return Aggregate(name, target or None, value, span), AGGREGATES[name] or kind


def _report_no_aggregate(name: str, place: ExpressionContext, span: Span, bench: CheckerContext) -> None:
    over = "count(1h)" if name == "count" else f"{name}(amount, 30d)"
    tip = f"over earlier events: `{over}`" if place.history and name in HISTORY else None
    message = f"`{name}` over the events taken cannot stand in {place.what}"
    bench.report.error(
        "misplaced-aggregate", message, span, hint=tip or "it can stand in `having`, `emit` and `message`"
    )


def _report_arguments(name: str, node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> None:
    step = next(iter(place.readable), "step")
    example = f"{name}({step}.amount)" if place.aggregates == "steps" else f"{name}(amount)"
    tip = None
    if len(node.args) == 2 and name in HISTORY:
        tip = f"over earlier events the second argument is a time: `{name}(amount, 30d)`"
    message = f"`{name}` takes one expression, not {len(node.args)}"
    bench.report.error("argument-count", message, span, expected=example, hint=tip)


def _count(node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed | None:
    if not node.args:
        if place.aggregates == "events":
            return Aggregate("count", None, None, span), NUMBER
        bench.report.error("missing-step", "`count()` of which step?", span, expected=_examples("count", place))
        return None
    arg = node.args[0]
    path = arg.path if isinstance(arg, Name) else ""
    if len(node.args) == 1 and path in place.readable:
        return Aggregate("count", path, None, span), NUMBER
    if path in place.unreadable:
        message = f"`{path}` cannot be read here: {place.unreadable[path]}"
        bench.report.error("unreadable-step", message, span, expected=one_of(place.readable))
        return None
    tip = did_you_mean(path, place.readable)
    if path.split(".")[0] in place.readable:
        tip = f"write `count({path.split('.')[0]})`"
    elif tip is None and place.aggregates == "events":
        tip = "count() counts events; distinct(field) counts different values"
    message = f"`count` takes the name of a step, not `{path or 'an expression'}`"
    bench.report.error("unknown-step", message, span, expected=_examples("count", place), hint=tip)
    return None


def _examples(name: str, place: ExpressionContext) -> str | None:
    suffix = "" if name == "count" else ".amount"
    return " or ".join(f"{name}({step}{suffix})" for step in list(place.readable)[:4]) or None


def _target(name: str, arg: Expr, place: ExpressionContext, span: Span, bench: CheckerContext) -> str | None:
    """The step whose events are read; "" for all events; None after a finding."""
    paths = [part.path.removeprefix("?") for part in walk(arg) if isinstance(part, Name)]
    heads = {path.partition(".")[0] for path in paths if "." in path}
    bad = next((head for head in sorted(heads) if head in place.unreadable), None)
    targets = sorted(head for head in heads if head in place.readable)
    bare = next((path for path in paths if path in place.readable and not _is_field(path, place, bench)), None)
    if bad is not None:
        message = f"`{bad}` cannot be read here: {place.unreadable[bad]}"
        bench.report.error("unreadable-step", message, span, expected=one_of(place.readable))
    elif bare is not None:
        expected = f"{name}({bare}.amount)"
        bench.report.error("missing-field", f"`{name}` of which field of `{bare}`?", span, expected=expected)
    elif len(targets) > 1:
        bench.report.error("two-steps", f"`{name}` reads one step, not {' and '.join(targets)}", span)
    elif targets and any(path.partition(".")[0] != targets[0] for path in paths):
        expected = f"{targets[0]}.field"
        bench.report.error("two-steps", f"inside `{name}` every field needs the step's name", span, expected=expected)
    elif not targets and place.aggregates == "steps":
        _report_no_step(name, paths, place, span, bench)
    else:
        return targets[0] if targets else ""
    return None


def _is_field(path: str, place: ExpressionContext, bench: CheckerContext) -> bool:
    if bench.schema is not None:
        return bench.schema.kind(path, place.types) is not None
    return path in bench.lets or path in bench.known_heads


def _report_no_step(name: str, paths: list[str], place: ExpressionContext, span: Span, bench: CheckerContext) -> None:
    head, _, rest = paths[0].partition(".") if paths else ("", "", "")
    tip = did_you_mean(head, place.readable) if rest else None
    if tip is None and place.history and name in HISTORY:
        tip = f"over earlier events: `{name}({paths[0] if paths else 'amount'}, 30d)`"
    bench.report.error("missing-step", f"`{name}` of which step?", span, expected=_examples(name, place), hint=tip)


def _no_steps(place: ExpressionContext, target: str) -> dict[str, str]:
    return {name: "an aggregate reads one step" for name in place.readable if name != target}


def _stripped(arg: Expr, target: str) -> Expr:
    """The expression with `probe.amount` as `amount`: inside the aggregate the event at hand is the step's."""
    if not target:
        return arg
    if isinstance(arg, Name):
        optional = "?" if arg.path.startswith("?") else ""
        return Name(optional + arg.path.removeprefix("?").removeprefix(target + "."), arg.span)
    changes: dict[str, Any] = {}
    for name in arg.__dataclass_fields__:
        value = getattr(arg, name)
        if isinstance(value, tuple):
            changes[name] = tuple(_stripped(item, target) if hasattr(item, "span") else item for item in value)
        elif hasattr(value, "span") and not isinstance(value, Span):
            changes[name] = _stripped(value, target)
    return replace(arg, **changes)
