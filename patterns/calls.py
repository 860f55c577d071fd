"""What a call means: a function of values, an aggregate over events taken, or a look at earlier events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samovar.patterns.functions import (
    AGGREGATES,
    ALL_NAMES,
    ANY,
    BOOLEAN,
    FUNCTIONS,
    HISTORY,
    NULL,
    NUMBER,
    TEXT,
    Function,
)
from samovar.patterns.habits import KEYWORDS
from samovar.patterns.nearest import did_you_mean
from samovar.patterns.scope import Bench, Place, Typed, one_of, where
from samovar.patterns.syntax import Aggregate, Call, Expr, History, Literal, Name, Span, walk

_ELSEWHERE = {
    "median": "there are count, sum, avg, min, max, stddev, distinct, first, last and values",
    "average": "did you mean `avg`?",
    "mean": "did you mean `avg`?",
    "cardinality": "did you mean `distinct`?",
    "count_distinct": "did you mean `distinct`?",
    "len": "did you mean `length`?",
    "size": "did you mean `length`?",
    "if": "there is no `if`; write two rules, or `or`",
    "now": "rules run by event time: `@time`",
    "wildcard": 'write `field like ("a*", "b*")`',
    "match": 'write `field regex "..."`',
    "is_null": "write `field == null`",
    "not_null": "write `field != null`",
}


def resolve_call(node: Call, place: Place, bench: Bench) -> Typed:
    name, span = node.function, where(node.span, place)
    if node.where is not None:
        bench.report.error(
            "missing-duration",
            f"`where` inside `{name}` needs a time before it",
            node.where.span,
            expected=f"{name}(field, 30d where ...)",
        )
    if name in FUNCTIONS:
        return _function(FUNCTIONS[name], node, place, span, bench)
    if name in AGGREGATES:
        return _aggregate(name, node, place, span, bench)
    if name in HISTORY:
        bench.report.error(
            "missing-duration", f"`{name}` needs a time to look back", span, expected=_history_example(name)
        )
        return Literal(None, span), HISTORY[name] or ANY
    if name.lower() in KEYWORDS and name != name.lower():
        tip: str | None = f"keywords are lower case: `{name.lower()}`"
    else:
        tip = _ELSEWHERE.get(name) or did_you_mean(name, ALL_NAMES)
    bench.report.error(
        "unknown-function",
        f"there is no function `{name}`",
        span,
        hint=tip,
        expected=None if tip else "a function: " + ", ".join(sorted(ALL_NAMES)),
    )
    for arg in node.args:
        bench.resolve(arg, replace(place, at=place.at), bench)
    return Literal(None, span), ANY


# ---------------------------------------------------------------- functions of values


def _function(function: Function, node: Call, place: Place, span: Span, bench: Bench) -> Typed:
    given = len(node.args)
    if given < function.least or (function.most is not None and given > function.most):
        few = "few" if given < function.least else "many"
        bench.report.error(
            "argument-count",
            f"too {few} arguments for `{function.name}`: {given}, not {_wanted(function)}",
            span,
            expected=function.example,
        )
    args, kinds = [], []
    for index, raw in enumerate(node.args):
        arg, kind = bench.resolve(raw, place, bench)
        _check_argument(function, index, arg, kind, bench)
        args.append(arg)
        kinds.append(kind)
    _check_constants(function.name, args, bench)
    return Call(function.name, tuple(args), None, span), function.result or _common(kinds)


def _wanted(function: Function) -> str:
    if function.most is None:
        return f"{function.least} or more"
    return str(function.least) if function.least == function.most else f"{function.least} to {function.most}"


def _check_argument(function: Function, index: int, arg: Expr, kind: str, bench: Bench) -> None:
    wanted = function.kind(index)
    if ANY in (wanted, kind) or kind in (NULL, wanted):
        return
    bench.report.warning(
        "argument-type",
        f"`{function.name}` takes {wanted} here; of a {kind} it gives null",
        arg.span,
        expected=function.example,
    )


def _common(kinds: list[str]) -> str:
    known = {kind for kind in kinds if kind != NULL}
    return known.pop() if len(known) == 1 else ANY


def _check_constants(name: str, args: list[Expr], bench: Bench) -> None:
    """Networks and time zones that stand in the rule are looked at now, not when the first event comes."""
    texts = [(arg.value, arg.span) for arg in args[1:] if isinstance(arg, Literal) and isinstance(arg.value, str)]
    for text, span in texts:
        if name == "cidr" and not _is_network(text):
            bench.report.error(
                "bad-network", f"`{text}` is no network", span, expected='a network such as "10.0.0.0/8"'
            )
        elif name in ("hour", "day_of_week") and not _is_zone(text):
            bench.report.error(
                "unknown-zone", f"`{text}` is no time zone", span, expected='a zone such as "Europe/Berlin"'
            )


def _is_network(text: str) -> bool:
    # Imported here, as zoneinfo below: few rules need them, and all would pay at start-up.
    import ipaddress  # noqa: PLC0415

    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_zone(text: str) -> bool:
    import zoneinfo  # noqa: PLC0415

    try:
        zoneinfo.ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        # Without any time zone data on this machine nothing can be said of the name.
        return not zoneinfo.available_timezones()
    return True


# ---------------------------------------------------------------- aggregates


def _aggregate(name: str, node: Call, place: Place, span: Span, bench: Bench) -> Typed:
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
    inner = Place(types, place.what, at=place.at, lets=place.lets, unreadable=_no_steps(place, target))
    value, kind = bench.resolve(_stripped(node.args[0], target), inner, bench)
    if name in ("sum", "avg", "stddev") and kind in (TEXT, BOOLEAN):
        bench.report.error(
            "not-a-number",
            f"`{name}` takes numbers; this is {kind}",
            span,
            hint="distinct(...) counts different values",
        )
    return Aggregate(name, target or None, value, span), AGGREGATES[name] or kind


def _report_no_aggregate(name: str, place: Place, span: Span, bench: Bench) -> None:
    over = "count(1h)" if name == "count" else f"{name}(amount, 30d)"
    tip = f"over earlier events: `{over}`" if place.history and name in HISTORY else None
    bench.report.error(
        "misplaced-aggregate",
        f"`{name}` over the events taken cannot stand in {place.what}",
        span,
        hint=tip or "it can stand in `having`, `emit` and `message`",
    )


def _report_arguments(name: str, node: Call, place: Place, span: Span, bench: Bench) -> None:
    step = next(iter(place.readable), "step")
    example = f"{name}({step}.amount)" if place.aggregates == "steps" else f"{name}(amount)"
    tip = None
    if len(node.args) == 2 and name in HISTORY:
        tip = f"over earlier events the second argument is a time: `{name}(amount, 30d)`"
    bench.report.error(
        "argument-count", f"`{name}` takes one expression, not {len(node.args)}", span, expected=example, hint=tip
    )


def _count(node: Call, place: Place, span: Span, bench: Bench) -> Typed | None:
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
        bench.report.error(
            "unreadable-step",
            f"`{path}` cannot be read here: {place.unreadable[path]}",
            span,
            expected=one_of(place.readable),
        )
        return None
    tip = did_you_mean(path, place.readable)
    if path.split(".")[0] in place.readable:
        tip = f"write `count({path.split('.')[0]})`"
    elif tip is None and place.aggregates == "events":
        tip = "count() counts events; distinct(field) counts different values"
    bench.report.error(
        "unknown-step",
        f"`count` takes the name of a step, not `{path or 'an expression'}`",
        span,
        expected=_examples("count", place),
        hint=tip,
    )
    return None


def _examples(name: str, place: Place) -> str | None:
    suffix = "" if name == "count" else ".amount"
    return " or ".join(f"{name}({step}{suffix})" for step in list(place.readable)[:4]) or None


def _target(name: str, arg: Expr, place: Place, span: Span, bench: Bench) -> str | None:
    """The step whose events are read; "" for all events; None after a finding."""
    paths = [part.path.removeprefix("?") for part in walk(arg) if isinstance(part, Name)]
    heads = {path.partition(".")[0] for path in paths if "." in path}
    bad = next((head for head in sorted(heads) if head in place.unreadable), None)
    targets = sorted(head for head in heads if head in place.readable)
    bare = next((path for path in paths if path in place.readable and not _is_field(path, place, bench)), None)
    if bad is not None:
        bench.report.error(
            "unreadable-step",
            f"`{bad}` cannot be read here: {place.unreadable[bad]}",
            span,
            expected=one_of(place.readable),
        )
    elif bare is not None:
        bench.report.error(
            "missing-field", f"`{name}` of which field of `{bare}`?", span, expected=f"{name}({bare}.amount)"
        )
    elif len(targets) > 1:
        bench.report.error("two-steps", f"`{name}` reads one step, not {' and '.join(targets)}", span)
    elif targets and any(path.partition(".")[0] != targets[0] for path in paths):
        bench.report.error(
            "two-steps", f"inside `{name}` every field needs the step's name", span, expected=f"{targets[0]}.field"
        )
    elif not targets and place.aggregates == "steps":
        _report_no_step(name, paths, place, span, bench)
    else:
        return targets[0] if targets else ""
    return None


def _is_field(path: str, place: Place, bench: Bench) -> bool:
    if bench.schema is not None:
        return bench.schema.kind(path, place.types) is not None
    return path in bench.lets or any(known.split(".")[0] == path for known in bench.known_fields or ())


def _report_no_step(name: str, paths: list[str], place: Place, span: Span, bench: Bench) -> None:
    head, _, rest = paths[0].partition(".") if paths else ("", "", "")
    tip = did_you_mean(head, place.readable) if rest else None
    if tip is None and place.history and name in HISTORY:
        tip = f"over earlier events: `{name}({paths[0] if paths else 'amount'}, 30d)`"
    bench.report.error("missing-step", f"`{name}` of which step?", span, expected=_examples(name, place), hint=tip)


def _no_steps(place: Place, target: str) -> dict[str, str]:
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


# ---------------------------------------------------------------- earlier events


def resolve_history(node: History, place: Place, bench: Bench) -> Typed:
    span = where(node.span, place)
    if not place.history:
        bench.report.error(
            "misplaced-history",
            f"`{node.function}` over a time cannot stand in {place.what}",
            span,
            hint="it looks at earlier events from the condition of a bracket",
        )
        return Literal(None, span), HISTORY[node.function] or ANY
    reasons = dict.fromkeys([*place.readable, *place.unreadable], f"`{node.function}` reads fields of the event")
    inner = Place(place.types, f"`{node.function}`", unreadable=reasons, at=place.at, lets=place.lets)
    value, kind = bench.resolve(node.value, inner, bench) if node.value is not None else (None, NUMBER)
    condition = None
    if node.where is not None:
        condition, where_kind = bench.resolve(node.where, inner, bench)
        if where_kind not in (BOOLEAN, ANY):
            bench.report.error("not-a-condition", "a condition must be true or false", condition.span)
    if node.function in ("sum", "avg") and kind in (TEXT, BOOLEAN):
        bench.report.error("not-a-number", f"`{node.function}` takes numbers; this is {kind}", span)
    return History(node.function, value, node.span_ms, condition, span), HISTORY[node.function] or kind


def _history_example(name: str) -> str:
    return f"{name}(device, 90d)"
