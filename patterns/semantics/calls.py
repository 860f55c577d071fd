"""What a call means: a function of values, an aggregate over events taken, or a look at earlier events."""

from __future__ import annotations

from samovar.common.suggest import did_you_mean
from samovar.patterns.parse.dialect_hints import KEYWORDS
from samovar.patterns.semantics.aggregates import resolve_aggregate
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, Typed, where
from samovar.patterns.syntax.functions import (
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
from samovar.patterns.syntax.tree import Call, Expr, History, Literal, Name, Span

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


def resolve_call(node: Call, place: ExpressionContext, bench: CheckerContext) -> Typed:
    name, span = node.function, where(node.span, place)
    if node.where is not None:
        message = f"`where` inside `{name}` needs a time before it"
        bench.report.error("missing-duration", message, node.where.span, expected=f"{name}(field, 30d where ...)")
    if name in FUNCTIONS:
        return _function(FUNCTIONS[name], node, place, span, bench)
    if name in AGGREGATES:
        return resolve_aggregate(name, node, place, span, bench)
    if name in HISTORY:
        message = f"`{name}` needs a time to look back"
        bench.report.error("missing-duration", message, span, expected=_history_example(name))
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
        # A misspelt aggregate may well take a step's name.
        if not (isinstance(arg, Name) and arg.path in place.readable):
            bench.resolve(arg, place, bench)
    return Literal(None, span), ANY


# ---------------------------------------------------------------- functions of values


def _function(function: Function, node: Call, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed:
    given = len(node.args)
    if given < function.least or (function.most is not None and given > function.most):
        few = "few" if given < function.least else "many"
        message = f"too {few} arguments for `{function.name}`: {given}, not {_wanted(function)}"
        bench.report.error("argument-count", message, span, expected=function.example)
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


def _check_argument(function: Function, index: int, arg: Expr, kind: str, bench: CheckerContext) -> None:
    wanted = function.kind(index)
    if ANY in (wanted, kind) or kind in (NULL, wanted):
        return
    message = f"`{function.name}` takes {wanted} here; of a {kind} it gives null"
    bench.report.warning("argument-type", message, arg.span, expected=function.example)


def _common(kinds: list[str]) -> str:
    known = {kind for kind in kinds if kind != NULL}
    return known.pop() if len(known) == 1 else ANY


def _check_constants(name: str, args: list[Expr], bench: CheckerContext) -> None:
    """Networks and time zones that stand in the rule are looked at now, not when the first event comes."""
    texts = [(arg.value, arg.span) for arg in args[1:] if isinstance(arg, Literal) and isinstance(arg.value, str)]
    for text, span in texts:
        if name == "cidr" and not _is_network(text):
            expected = 'a network such as "10.0.0.0/8"'
            bench.report.error("bad-network", f"`{text}` is no network", span, expected=expected)
        elif name in ("hour", "day_of_week") and not _is_zone(text):
            expected = 'a zone such as "Europe/Berlin"'
            bench.report.error("unknown-zone", f"`{text}` is not a time zone", span, expected=expected)


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


# ---------------------------------------------------------------- earlier events


def resolve_history(node: History, place: ExpressionContext, bench: CheckerContext) -> Typed:
    span = where(node.span, place)
    if not place.history:
        message = f"`{node.function}` over a time cannot stand in {place.what}"
        hint = "it looks at earlier events from the condition of a bracket"
        bench.report.error("misplaced-history", message, span, hint=hint)
        return Literal(None, span), HISTORY[node.function] or ANY
    reasons = dict.fromkeys([*place.readable, *place.unreadable], f"`{node.function}` reads fields of the event")
    inner = ExpressionContext(place.types, f"`{node.function}`", unreadable=reasons, at=place.at, lets=place.lets)
    value, kind = bench.resolve(node.value, inner, bench) if node.value is not None else (None, NUMBER)
    condition = None
    if node.where is not None:
        condition, where_kind = bench.resolve(node.where, inner, bench)
        if where_kind not in (BOOLEAN, ANY):
            bench.report.error("not-a-condition", "a condition must be true or false", condition.span)
    if node.function == "seen" and not isinstance(node.value, Name | History):
        bench.report.error(
            "seen-of-expression", "`seen` takes a field", span, expected="seen(device, 90d)",
            hint="give the expression a name under `let`, and that to `seen`",
        )  # fmt: skip
    if node.function in ("sum", "avg") and kind in (TEXT, BOOLEAN):
        bench.report.error("not-a-number", f"`{node.function}` takes numbers; this is {kind}", span)
    return History(node.function, value, node.span_ms, condition, span), HISTORY[node.function] or kind


def _history_example(name: str) -> str:
    return f"{name}(device, 90d)"
