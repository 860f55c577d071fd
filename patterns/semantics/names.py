"""What a name means: a field of the event, a field of an earlier step, or a `let`."""

from __future__ import annotations

from dataclasses import replace

from samovar.common.suggest import did_you_mean, nearest
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, Typed, one_of, where
from samovar.patterns.syntax.functions import ANY, NUMBER, TEXT
from samovar.patterns.syntax.tree import Field, Name, OfStep, Span

_SPECIAL = {"@time": NUMBER, "@type": TEXT}
_WORDS = {"true", "false", "null", "none", "and", "or", "not"}


def resolve_name(node: Name, place: ExpressionContext, bench: CheckerContext) -> Typed:
    path, span, optional = node.path.removeprefix("?"), where(node.span, place), node.path.startswith("?")
    head, _, rest = path.partition(".")
    if rest and head in place.readable:
        inner = ExpressionContext(place.readable[head].types, place.what, at=span, lets=place.lets)
        is_let = rest in bench.lets
        value, kind = _let(rest, inner, span, bench) if is_let else _field(rest, inner, span, bench, optional)
        return OfStep(head, value, span), kind
    if rest and head in place.unreadable:
        message = f"`{path}` cannot be read here: {place.unreadable[head]}"
        bench.report.error("unreadable-step", message, span, expected=one_of(place.readable))
        return Field(path, span), ANY
    if path in bench.lets:
        return _let(path, place, span, bench)
    if path in place.readable and bench.schema is None and path not in bench.known_heads:
        # A step alone: nearly always a field of it is meant.
        message = f"`{path}` is a step; alone it reads a field `{path}` of the event"
        bench.report.warning("step-as-field", message, span, hint=f"read a field of the step: `{path}.amount`")
    return _field(path, place, span, bench, optional)


def _field(path: str, place: ExpressionContext, span: Span, bench: CheckerContext, optional: bool) -> Typed:
    """A field of the event at hand, checked against what is known."""
    if path.startswith("@"):
        # Longer than its name: it stood in backticks, as Elastic's own `@timestamp` does, and is a plain field.
        in_backticks = span.line == span.end_line and span.end_column - span.column > len(path)
        if path not in _SPECIAL and not in_backticks:
            message, tip = f"there is no `{path}`", did_you_mean(path, _SPECIAL)
            bench.report.error("unknown-field", message, span, expected="@time or @type", hint=tip)
        return Field(path, span), _SPECIAL.get(path, ANY)
    if bench.schema is None:
        if not optional:
            _check_habits(path, place, span, bench)
        return Field(path, span), ANY
    kind = bench.schema.kind(path, place.types)
    if kind is None and not optional and bench.schema.knows(place.types):
        known = bench.schema.fields(place.types)
        of = " or ".join(f"`{name}`" for name in place.types)
        message = f"no event has `{path}`" if "any" in place.types else f"{of} has no field `{path}`"
        tip = _meant(path, place, list(known), bench)
        bench.report.error("unknown-field", message, span, expected=one_of(known), hint=tip)
    return Field(path, span), kind or ANY


def _let(name: str, place: ExpressionContext, span: Span, bench: CheckerContext) -> Typed:
    """The let's expression, written out where it is used."""
    if name in place.lets:
        circle = " -> ".join([*place.lets, name])
        bench.report.error("circular-let", f"`let` goes in a circle: {circle}", span)
        return Field(name, span), ANY
    return bench.resolve(bench.lets[name], replace(place, at=span, lets=(*place.lets, name)), bench)


def _check_habits(path: str, place: ExpressionContext, span: Span, bench: CheckerContext) -> None:
    """Without a schema no field is unknown, but some names are slips all the same."""
    head, _, rest = path.partition(".")
    if head in bench.known_heads:
        return
    if not rest and path.lower() in _WORDS and path != path.lower():
        meant = {"none": "null"}.get(path.lower(), path.lower())
        hint = f"keywords are lower case: `{meant}`"
        expected = f"`{meant}`"
        bench.report.error("wrong-case", f"`{path}` would be a field of that name", span, expected=expected, hint=hint)
        return
    close = nearest(head, [*place.readable, *place.unreadable]) if rest else None
    if close:
        message = f"no step is named `{head}`"
        hint = f"did you mean `{close}.{rest}`? If it is a field all the same, write `?{path}`"
        bench.report.error("unknown-step", message, span, expected=one_of(place.readable), hint=hint)


def _meant(path: str, place: ExpressionContext, known: list[str], bench: CheckerContext) -> str | None:
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
    return did_you_mean(path, [*known, *bench.lets])
