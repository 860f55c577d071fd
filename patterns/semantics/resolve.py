"""The raw tree to the resolved one, expression by expression, with the kinds of all values on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from samovar.common.suggest import did_you_mean, nearest
from samovar.patterns.parse.dialect_hints import KEYWORDS
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, TooLarge, Typed, one_of, where
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.functions import (
    AGGREGATES,
    ALL_NAMES,
    ANY,
    BOOLEAN,
    FUNCTIONS,
    HISTORY,
    LIST,
    NULL,
    NUMBER,
    TEXT,
    Function,
)
from samovar.patterns.syntax.tree import rewrite, walk

_ORDER = ("<", "<=", ">", ">=")
_COMPARISONS = ("==", "!=", *_ORDER)
_SPECIAL = {"@time": NUMBER, "@type": TEXT}
_WORDS = {"true", "false", "null", "none", "and", "or", "not"}
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


def resolve(node: tree.Expr, place: ExpressionContext, context: CheckerContext) -> Typed:
    with context.inside(where(node.span, place)):
        return _RESOLVERS[type(node)](node, place, context)


def resolve_guarded(
    node: tree.Expr, place: ExpressionContext, context: CheckerContext, condition: bool = False
) -> tree.Expr:
    """As `resolve`, for a whole expression; one that grows without bound becomes a finding."""
    try:
        expr, kind = resolve(node, place, context)
        if condition:
            require_boolean(expr, kind, node.span, context)
        return expr
    except TooLarge as fault:
        if not context.exhausted:
            hint = "let definitions that use each other multiply: make them simpler"
            context.report.error("too-large", "the rule is too large once `let` is written out", fault.span, hint=hint)
        context.exhausted = True
        return tree.Literal(True, node.span)


def require_boolean(expr: tree.Expr, kind: str, span: tree.Span, context: CheckerContext) -> None:
    if kind in (BOOLEAN, ANY):
        return
    hint = "compare it, as in `... > 0`" if kind == NUMBER else None
    if kind == TEXT and not isinstance(expr, tree.Literal):
        hint = 'compare it, as in `... == "text"` or `... != null`'
    message = f"a condition must be true or false; this is {_kind_phrase(kind)}"
    context.report.error("not-a-condition", message, span, expected="a comparison", hint=hint)


def _literal(node: tree.Literal, place: ExpressionContext, _: CheckerContext) -> Typed:
    kind = {type(None): NULL, bool: BOOLEAN, str: TEXT}.get(type(node.value), NUMBER)
    return (node if place.at is None else tree.Literal(node.value, place.at)), kind


def _unary(node: tree.Unary, place: ExpressionContext, context: CheckerContext) -> Typed:
    operand, kind = resolve(node.operand, place, context)
    span = where(node.span, place)
    if node.op == "not":
        require_boolean(operand, kind, operand.span, context)
        return tree.Unary("not", operand, span), BOOLEAN
    _require_number(kind, "-", operand.span, context)
    return tree.Unary("-", operand, span), NUMBER


def _binary(node: tree.Binary, place: ExpressionContext, context: CheckerContext) -> Typed:
    left, left_kind = resolve(node.left, place, context)
    right, right_kind = resolve(node.right, place, context)
    expr = tree.Binary(node.op, left, right, where(node.span, place), where(node.op_span, place))
    if node.op in ("and", "or"):
        require_boolean(left, left_kind, left.span, context)
        require_boolean(right, right_kind, right.span, context)
        return expr, BOOLEAN
    if node.op in _COMPARISONS:
        kinds = (left_kind, right_kind)
        if NULL in kinds and node.op in _ORDER:
            hint = "`== null` and `!= null` ask for null"
            context.report.warning("null-order", f"`{node.op} null` is never true", expr.span, hint=hint)
        elif NULL not in kinds and (_is_mismatch(*kinds) or LIST in kinds):
            message, tip = (
                f"{_kind_phrase(left_kind)} is compared with {_kind_phrase(right_kind)}",
                _mismatch_hint(expr, *kinds),
            )
            expected = f"{_kind_phrase(left_kind)} on both sides"
            context.report.error("type-mismatch", message, expr.span, expected=expected, hint=tip)
        return expr, BOOLEAN
    _require_number(left_kind, node.op, left.span, context)
    _require_number(right_kind, node.op, right.span, context)
    return expr, NUMBER


def _require_number(kind: str, op: str, span: tree.Span, context: CheckerContext) -> None:
    if kind in (NUMBER, ANY, NULL):
        return
    tip = "texts are joined by concat(a, b)" if op == "+" else "number(...) turns text into a number"
    message = f"`{op}` takes numbers; this is {_kind_phrase(kind)}"
    context.report.error("not-a-number", message, span, expected="a number", hint=tip if kind == TEXT else None)


def _is_mismatch(left: str, right: str) -> bool:
    return ANY not in (left, right) and NULL not in (left, right) and left != right


def _mismatch_hint(node: tree.Binary, left: str, right: str) -> str | None:
    for value, kind, other in ((node.right, right, left), (node.left, left, right)):
        if not isinstance(value, tree.Literal):
            continue
        if other == TEXT:
            text = str(value.value).lower() if isinstance(value.value, bool) else value.value
            return f'write it as text: "{text}"'
        if kind == TEXT and other == NUMBER:
            with suppress(ValueError):
                float(str(value.value)[:400])
                return f"write it without quotes: {value.value}"
        if kind == TEXT and other == BOOLEAN and str(value.value).lower() in ("true", "false"):
            return f"write it without quotes: {str(value.value).lower()}"
    convert = "number(...) turns text into a number, string(...) a number into text"
    return None if BOOLEAN in (left, right) else convert


def _kind_phrase(kind: str) -> str:
    return {"number": "a number", "text": "text", "boolean": "true or false", "list": "a list"}.get(kind, kind)


def _in(node: tree.In, place: ExpressionContext, context: CheckerContext) -> Typed:
    operand, kind = resolve(node.operand, place, context)
    items = []
    fitting: set[str] = set()  # kinds that can be compared with the operand's
    for raw in node.items:
        # A list may be long: its literals do not count as nodes, and each is looked at briefly.
        if isinstance(raw, tree.Literal):
            item, item_kind = _literal(raw, place, context)
        else:
            item, item_kind = resolve(raw, place, context)
        items.append(item)
        if item_kind not in fitting and _is_mismatch(kind, item_kind):
            tip = _mismatch_hint(tree.Binary("==", operand, item, item.span), kind, item_kind)
            message = f"{_kind_phrase(kind)} is compared with {_kind_phrase(item_kind)}"
            context.report.error("type-mismatch", message, item.span, expected=_kind_phrase(kind), hint=tip)
        else:
            fitting.add(item_kind)
    listed: tuple[tree.Expr, ...] = tuple(items)
    literals = [item for item in items if isinstance(item, tree.Literal)]
    if tree.LONG_LIST < len(items) == len(literals):
        long = tree.LongList(literals)
        listed = context.long_lists.setdefault(long, long)
    return tree.In(operand, listed, node.negated, node.ignore_case, where(node.span, place)), BOOLEAN


def _text_match(node: tree.TextMatch, place: ExpressionContext, context: CheckerContext) -> Typed:
    operand, kind = resolve(node.operand, place, context)
    span = where(node.span, place)
    if kind in (NUMBER, BOOLEAN):
        hint = "compare it with == or <"
        context.report.warning(
            "pattern-on-number", f"`{node.kind}` on {_kind_phrase(kind)} is never true", span, hint=hint
        )
    return tree.TextMatch(node.kind, operand, node.patterns, node.ignore_case, span), BOOLEAN


def _name(node: tree.Name, place: ExpressionContext, context: CheckerContext) -> Typed:
    path, span, optional = node.path.removeprefix("?"), where(node.span, place), node.path.startswith("?")
    head, _, rest = path.partition(".")
    if rest and head in place.readable:
        inner = ExpressionContext(types=place.readable[head].types, what=place.what, at=span, lets=place.lets)
        is_let = rest in context.lets
        value, kind = _let(rest, inner, span, context) if is_let else _field(rest, inner, span, context, optional)
        return tree.OfStep(head, value, span), kind
    if rest and head in place.unreadable:
        message = f"`{path}` cannot be read here: {place.unreadable[head]}"
        context.report.error("unreadable-step", message, span, expected=one_of(place.readable))
        return tree.Field(path, span), ANY
    if path in context.lets:
        return _let(path, place, span, context)
    if path in place.readable and context.schema is None and path not in context.known_heads:
        # A step alone: nearly always a field of it is meant.
        message = f"`{path}` is a step; alone it reads a field `{path}` of the event"
        context.report.warning("step-as-field", message, span, hint=f"read a field of the step: `{path}.amount`")
    return _field(path, place, span, context, optional)


def _field(path: str, place: ExpressionContext, span: tree.Span, context: CheckerContext, optional: bool) -> Typed:
    """A field of the event at hand, checked against what is known."""
    if path.startswith("@"):
        # Longer than its name: it stood in backticks, as Elastic's own `@timestamp` does, and is a plain field.
        in_backticks = span.line == span.end_line and span.end_column - span.column > len(path)
        if path not in _SPECIAL and not in_backticks:
            message, tip = f"there is no `{path}`", did_you_mean(path, _SPECIAL)
            context.report.error("unknown-field", message, span, expected="@time or @type", hint=tip)
        return tree.Field(path, span), _SPECIAL.get(path, ANY)
    if context.schema is None:
        if not optional:
            _check_habits(path, place, span, context)
        return tree.Field(path, span), ANY
    kind = context.schema.kind(path, place.types)
    if kind is None and not optional and context.schema.knows(place.types):
        known = context.schema.fields(place.types)
        of = " or ".join(f"`{name}`" for name in place.types)
        message = f"no event has `{path}`" if "any" in place.types else f"{of} has no field `{path}`"
        tip = _meant(path, place, list(known), context)
        context.report.error("unknown-field", message, span, expected=one_of(known), hint=tip)
    return tree.Field(path, span), kind or ANY


def _let(name: str, place: ExpressionContext, span: tree.Span, context: CheckerContext) -> Typed:
    """The let's expression, written out where it is used."""
    if name in place.lets:
        circle = " -> ".join([*place.lets, name])
        context.report.error("circular-let", f"`let` goes in a circle: {circle}", span)
        return tree.Field(name, span), ANY
    return resolve(context.lets[name], replace(place, at=span, lets=(*place.lets, name)), context)


def _check_habits(path: str, place: ExpressionContext, span: tree.Span, context: CheckerContext) -> None:
    """Without a schema no field is unknown, but some names are slips all the same."""
    head, _, rest = path.partition(".")
    if head in context.known_heads:
        return
    if not rest and path.lower() in _WORDS and path != path.lower():
        meant = {"none": "null"}.get(path.lower(), path.lower())
        hint = f"keywords are lower case: `{meant}`"
        expected = f"`{meant}`"
        message = f"`{path}` would be a field of that name"
        context.report.error("wrong-case", message, span, expected=expected, hint=hint)
        return
    close = nearest(head, [*place.readable, *place.unreadable]) if rest else None
    if close:
        message = f"no step is named `{head}`"
        hint = f"did you mean `{close}.{rest}`? If it is a field all the same, write `?{path}`"
        context.report.error("unknown-step", message, span, expected=one_of(place.readable), hint=hint)


def _meant(path: str, place: ExpressionContext, known: list[str], context: CheckerContext) -> str | None:
    head, _, rest = path.partition(".")
    if path in place.readable:
        return f"`{path}` is a step: read a field of it, as in `{path}.{known[0] if known else 'amount'}`"
    if path in ("ts", "time", "timestamp"):
        return "the event's time is `@time`"
    if path == "type":
        return "the event's type is `@type`"
    if path.lower() in _WORDS:
        return f"keywords are lower case: `{path.lower()}`"
    close = nearest(head, [*place.readable, *place.unreadable]) if rest else None
    if close:
        return f"did you mean `{close}.{rest}`?"
    return did_you_mean(path, [*known, *context.lets])


def _call(node: tree.Call, place: ExpressionContext, context: CheckerContext) -> Typed:
    name, span = node.function, where(node.span, place)
    if node.where is not None:
        message = f"`where` inside `{name}` needs a time before it"
        context.report.error("missing-duration", message, node.where.span, expected=f"{name}(field, 30d where ...)")
    if name in FUNCTIONS:
        return _function(FUNCTIONS[name], node, place, span, context)
    if name in AGGREGATES:
        return _aggregate(name, node, place, span, context)
    if name in HISTORY:
        message = f"`{name}` needs a time to look back"
        context.report.error("missing-duration", message, span, expected=f"{name}(device, 90d)")
        return tree.Literal(None, span), HISTORY[name] or ANY
    if name.lower() in KEYWORDS and name != name.lower():
        tip: str | None = f"keywords are lower case: `{name.lower()}`"
    else:
        tip = _ELSEWHERE.get(name) or did_you_mean(name, ALL_NAMES)
    expected = None if tip else "a function: " + ", ".join(sorted(ALL_NAMES))
    context.report.error("unknown-function", f"there is no function `{name}`", span, hint=tip, expected=expected)
    for arg in node.args:
        # A misspelt aggregate may well take a step's name.
        if not (isinstance(arg, tree.Name) and arg.path in place.readable):
            resolve(arg, place, context)
    return tree.Literal(None, span), ANY


# ---------------------------------------------------------------- functions of values


def _function(
    function: Function, node: tree.Call, place: ExpressionContext, span: tree.Span, context: CheckerContext
) -> Typed:
    given, least, most = len(node.args), function.least, function.most
    if given < least or (most is not None and given > most):
        few = "few" if given < least else "many"
        wanted = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
        message = f"too {few} arguments for `{function.name}`: {given}, not {wanted}"
        context.report.error("argument-count", message, span, expected=function.example)
    args, kinds = [], []
    for index, raw in enumerate(node.args):
        arg, kind = resolve(raw, place, context)
        wanted = function.kind(index)
        if ANY not in (wanted, kind) and kind not in (NULL, wanted):
            message = f"`{function.name}` takes {wanted} here; of a {kind} it gives null"
            context.report.warning("argument-type", message, arg.span, expected=function.example)
        args.append(arg)
        kinds.append(kind)
    # Networks and time zones that stand in the rule are looked at now, not when the first event comes.
    for arg in args[1:]:
        text = arg.value if isinstance(arg, tree.Literal) and isinstance(arg.value, str) else None
        if text is not None and function.name == "cidr" and not _is_network(text):
            expected = 'a network such as "10.0.0.0/8"'
            context.report.error("bad-network", f"`{text}` is no network", arg.span, expected=expected)
        elif text is not None and function.name in ("hour", "day_of_week") and not _is_zone(text):
            expected = 'a zone such as "Europe/Berlin"'
            context.report.error("unknown-zone", f"`{text}` is not a time zone", arg.span, expected=expected)
    known = {kind for kind in kinds if kind != NULL}
    common = known.pop() if len(known) == 1 else ANY
    return tree.Call(function.name, tuple(args), None, span), function.result or common


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


def _history(node: tree.History, place: ExpressionContext, context: CheckerContext) -> Typed:
    span = where(node.span, place)
    if not place.history:
        message = f"`{node.function}` over a time cannot stand in {place.what}"
        hint = "it looks at earlier events from the condition of a bracket"
        context.report.error("misplaced-history", message, span, hint=hint)
        return tree.Literal(None, span), HISTORY[node.function] or ANY
    reasons = dict.fromkeys([*place.readable, *place.unreadable], f"`{node.function}` reads fields of the event")
    inner = ExpressionContext(
        types=place.types, what=f"`{node.function}`", unreadable=reasons, at=place.at, lets=place.lets
    )
    value, kind = resolve(node.value, inner, context) if node.value is not None else (None, NUMBER)
    condition = None
    if node.where is not None:
        condition, where_kind = resolve(node.where, inner, context)
        if where_kind not in (BOOLEAN, ANY):
            context.report.error("not-a-condition", "a condition must be true or false", condition.span)
    if node.function == "seen" and not isinstance(node.value, tree.Name | tree.History):
        hint = "give the expression a name under `let`, and that to `seen`"
        expected = "seen(device, 90d)"
        context.report.error("seen-of-expression", "`seen` takes a field", span, expected=expected, hint=hint)
    if node.function in ("sum", "avg") and kind in (TEXT, BOOLEAN):
        context.report.error("not-a-number", f"`{node.function}` takes numbers; this is {kind}", span)
    return tree.History(node.function, value, node.span_ms, condition, span), HISTORY[node.function] or kind


# ---------------------------------------------------------------- aggregates over the events taken


def _aggregate(name: str, node: tree.Call, place: ExpressionContext, span: tree.Span, context: CheckerContext) -> Typed:
    """`count(probe)`, `sum(probe.amount * 2)`, `distinct(ip)`."""
    failed = tree.Literal(None, span), AGGREGATES[name] or ANY
    looks_back = place.history and name in HISTORY
    if place.aggregates is None:
        over = "count(1h)" if name == "count" else f"{name}(amount, 30d)"
        tip = f"over earlier events: `{over}`" if looks_back else "it can stand in `having`, `emit` and `message`"
        message = f"`{name}` over the events taken cannot stand in {place.what}"
        context.report.error("misplaced-aggregate", message, span, hint=tip)
        return failed
    if name == "count":
        return _count(node, place, span, context) or failed
    if len(node.args) != 1:
        step = next(iter(place.readable), "step")
        example = f"{name}({step}.amount)" if place.aggregates == "steps" else f"{name}(amount)"
        back = f"over earlier events the second argument is a time: `{name}(amount, 30d)`"
        message = f"`{name}` takes one expression, not {len(node.args)}"
        hint = back if len(node.args) == 2 and name in HISTORY else None
        context.report.error("argument-count", message, span, expected=example, hint=hint)
        return failed
    target = _target(name, node.args[0], place, span, context)
    if target is None:
        return failed
    types = place.readable[target].types if target else place.types
    others = {each: "an aggregate reads one step" for each in place.readable if each != target}
    inner = ExpressionContext(types=types, what=place.what, at=place.at, lets=place.lets, unreadable=others)

    def without_step(part: tree.Expr) -> tree.Expr | None:
        """`probe.amount` as `amount`: inside the aggregate the event at hand is the step's."""
        if not target or not isinstance(part, tree.Name):
            return None
        optional = "?" if part.path.startswith("?") else ""
        return tree.Name(optional + part.path.removeprefix("?").removeprefix(target + "."), part.span)

    value, kind = resolve(rewrite(node.args[0], without_step), inner, context)
    if name in ("sum", "avg", "stddev") and kind in (TEXT, BOOLEAN):
        hint = "distinct(...) counts different values"
        context.report.error("not-a-number", f"`{name}` takes numbers; this is {kind}", span, hint=hint)
    return tree.Aggregate(name, target or None, value, span), AGGREGATES[name] or kind


def _count(node: tree.Call, place: ExpressionContext, span: tree.Span, context: CheckerContext) -> Typed | None:
    if not node.args:
        if place.aggregates == "events":
            return tree.Aggregate("count", None, None, span), NUMBER
        context.report.error("missing-step", "`count()` of which step?", span, expected=_examples("count", place))
        return None
    arg = node.args[0]
    path = arg.path if isinstance(arg, tree.Name) else ""
    if len(node.args) == 1 and path in place.readable:
        return tree.Aggregate("count", path, None, span), NUMBER
    if path in place.unreadable:
        message = f"`{path}` cannot be read here: {place.unreadable[path]}"
        context.report.error("unreadable-step", message, span, expected=one_of(place.readable))
        return None
    tip = did_you_mean(path, place.readable)
    if path.split(".")[0] in place.readable:
        tip = f"write `count({path.split('.')[0]})`"
    elif tip is None and place.aggregates == "events":
        tip = "count() counts events; distinct(field) counts different values"
    message = f"`count` takes the name of a step, not `{path or 'an expression'}`"
    context.report.error("unknown-step", message, span, expected=_examples("count", place), hint=tip)
    return None


def _examples(name: str, place: ExpressionContext) -> str | None:
    suffix = "" if name == "count" else ".amount"
    return " or ".join(f"{name}({step}{suffix})" for step in list(place.readable)[:4]) or None


def _target(
    name: str, arg: tree.Expr, place: ExpressionContext, span: tree.Span, context: CheckerContext
) -> str | None:
    """The step whose events are read; "" for all events; None after a finding."""

    def is_field(path: str) -> bool:
        if context.schema is not None:
            return context.schema.kind(path, place.types) is not None
        return path in context.lets or path in context.known_heads

    paths = [part.path.removeprefix("?") for part in walk(arg) if isinstance(part, tree.Name)]
    heads = {path.partition(".")[0] for path in paths if "." in path}
    bad = next((head for head in sorted(heads) if head in place.unreadable), None)
    targets = sorted(head for head in heads if head in place.readable)
    bare = next((path for path in paths if path in place.readable and not is_field(path)), None)
    if bad is not None:
        message = f"`{bad}` cannot be read here: {place.unreadable[bad]}"
        context.report.error("unreadable-step", message, span, expected=one_of(place.readable))
    elif bare is not None:
        expected = f"{name}({bare}.amount)"
        context.report.error("missing-field", f"`{name}` of which field of `{bare}`?", span, expected=expected)
    elif len(targets) > 1:
        context.report.error("two-steps", f"`{name}` reads one step, not {' and '.join(targets)}", span)
    elif targets and any(path.partition(".")[0] != targets[0] for path in paths):
        expected = f"{targets[0]}.field"
        context.report.error("two-steps", f"inside `{name}` every field needs the step's name", span, expected=expected)
    elif not targets and place.aggregates == "steps":
        head, _, rest = paths[0].partition(".") if paths else ("", "", "")
        tip = did_you_mean(head, place.readable) if rest else None
        if tip is None and place.history and name in HISTORY:
            tip = f"over earlier events: `{name}({paths[0] if paths else 'amount'}, 30d)`"
        examples = _examples(name, place)
        context.report.error("missing-step", f"`{name}` of which step?", span, expected=examples, hint=tip)
    else:
        return targets[0] if targets else ""
    return None


_RESOLVERS: dict[type, Callable[[Any, ExpressionContext, CheckerContext], Typed]] = {
    tree.Literal: _literal, tree.Name: _name, tree.Unary: _unary, tree.Binary: _binary, tree.In: _in,
    tree.TextMatch: _text_match, tree.Call: _call, tree.History: _history,
}  # fmt: skip
