"""Expressions in plain English: conditions as sentences, values as noun phrases, times in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from samovar.common.times import UNITS
from samovar.patterns.analysis.satisfiability import folded
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import flatten, walk
from samovar.patterns.syntax.unparse import is_difference, is_moment

_UNIT_NAMES = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond"}
_COMPARED = {"==": "is", "!=": "is not", "<": "is below", "<=": "is at most", ">": "is above", ">=": "is at least"}
_TIME_COMPARED = {**_COMPARED, "<": "is less than", ">": "is more than"}
_OPPOSITE = {"==": "is not", "<": "is not below", "<=": "is not at most", ">": "is not above", ">=": "is not at least"}
_ARITHMETIC = {"+": "plus", "-": "minus", "*": "times", "/": "divided by", "%": "modulo"}
_FOLDS = {"sum": "the sum of", "avg": "the average of", "min": "the smallest", "max": "the largest",
          "stddev": "the standard deviation of", "first": "the first", "last": "the last"}  # fmt: skip
_TEXT_CALLS = {"starts_with": "begins with", "ends_with": "ends with", "contains": "contains"}
_SHOWN = 8
_LARGE = 121  # from here on a larger unit is easier to grasp


def duration_words(ms: int) -> str:
    """A time in words.

    >>> duration_words(600_000), duration_words(5_400_000), duration_words(88_200_000), duration_words(0)
    ('10 minutes', '90 minutes', '1 day and 30 minutes', '0 milliseconds')
    """
    unit = next((unit for unit in ("d", "h", "m", "s") if ms and ms % UNITS[unit] == 0), "ms")
    if ms < _LARGE * UNITS[unit] or unit in ("d", "ms"):
        return counted(ms // UNITS[unit], _UNIT_NAMES[unit])
    parts, rest = [], ms
    for name in ("d", "h", "m", "s"):
        number, rest = divmod(rest, UNITS[name])
        if number:
            parts.append(counted(number, _UNIT_NAMES[name]))
    return listed(parts)


def span_words(ms: int) -> str:
    """A time after `the last`: `hour`, `10 minutes`."""
    return duration_words(ms).removeprefix("1 ")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(items: Sequence[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"


def scalar_words(value: tree.Scalar) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    shown = f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    return shown if abs(value) >= 10_000 else shown.replace(",", "")


def condition_words(expr: tree.Expr) -> str:  # noqa: PLR0911 - one return per kind of condition
    """What must be true, as a clause: `amount is below 2 and country is one of "KP", "IR"`."""
    expr = folded(expr)
    match expr:
        case tree.Literal(True):
            return "it is any such event"
        case tree.Binary("and"):
            return " and ".join(_inside(part, "and") for part in flatten(expr, "and"))
        case tree.Binary("or"):
            return "either " + " or ".join(_inside(part, "or") for part in flatten(expr, "or"))
        case tree.Unary("not", operand):
            return _not(operand)
        case tree.Binary("==" | "!=" | "<" | "<=" | ">" | ">=" as op, left, right):
            return _comparison(op, left, right)
        case tree.In():
            return _membership(expr, expr.negated)
        case tree.TextMatch():
            return _text_match(expr, negated=False)
        case tree.Call("starts_with" | "ends_with" | "contains" as name, args):
            texts = listed([value_words(arg) for arg in args[1:]], "or")
            return f"{value_words(args[0])} {_TEXT_CALLS[name]} {texts}"
        case tree.Call("cidr", args):
            return f"{value_words(args[0])} lies in the network {listed([_bare(arg) for arg in args[1:]], 'or')}"
        case tree.History("seen"):
            return _seen_phrase(expr, "was seen")
    return f"{value_words(expr)} is true"


def _inside(part: tree.Expr, op: str) -> str:
    """A part of a chain; one that has its own `and` or `or` stands in brackets."""
    text = condition_words(part)
    mixed = isinstance(part, tree.Binary) and part.op in ("and", "or") and part.op != op
    return f"({text})" if mixed else text


def _not(operand: tree.Expr) -> str:
    match operand:
        case tree.History("seen"):
            return _seen_phrase(operand, "was not seen")
        case tree.In():
            return _membership(operand, not operand.negated)
        case tree.TextMatch():
            return _text_match(operand, negated=True)
        case tree.Unary("not", inner):
            return condition_words(inner)
        case tree.Binary("==" | "<" | "<=" | ">" | ">=" as op, left, right) if tree.Literal(None) not in (left, right):
            return f"{value_words(left)} {_OPPOSITE[op]} {_compared_with(left, right)} (or is missing)"
        case tree.Call("starts_with" | "ends_with" | "contains" | "cidr"):
            verbs = {"begins": "does not begin", "ends": "does not end", "contains": "does not contain",
                     "lies": "does not lie"}  # fmt: skip
            text = condition_words(operand)
            for verb, opposite in verbs.items():
                text = text.replace(f" {verb} ", f" {opposite} ", 1)
            return text
        case tree.Field():
            return f"{value_words(operand)} is not true"
    return f"it is not so that ({condition_words(operand)})"


def _comparison(op: str, left: tree.Expr, right: tree.Expr) -> str:
    if isinstance(left, tree.Literal) and not isinstance(right, tree.Literal):
        left, right = right, left
        op = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
    if isinstance(right, tree.Literal) and right.value is None:
        return f"{value_words(left)} {'is missing' if op == '==' else 'is there'}"
    verbs = _TIME_COMPARED if is_difference(left) else _COMPARED
    if isinstance(left, tree.Field) and isinstance(right, tree.OfStep) and right.value == left and op in ("==", "!="):
        return f"{value_words(left)} is {'the same as' if op == '==' else 'another than'} {value_words(right)}"
    return f"{value_words(left)} {verbs[op]} {_compared_with(left, right)}"


def _compared_with(left: tree.Expr, right: tree.Expr) -> str:
    """What stands on the right; next to a difference of times a number is a time."""
    if is_difference(left) and isinstance(right, tree.Literal) and type(right.value) is int and right.value >= 0:
        return duration_words(right.value)
    return value_words(right)


def _membership(expr: tree.In, negated: bool) -> str:
    items = expr.items
    shown = [value_words(item) for item in items[:_SHOWN]]
    if len(items) > _SHOWN:
        shown.append(f"{len(items) - _SHOWN:,} more")
    case = " (in any case of letters)" if expr.ignore_case else ""
    if len(items) == 1:
        return f"{value_words(expr.operand)} is {'not ' if negated else ''}{shown[0]}{case}"
    return f"{value_words(expr.operand)} is {'none' if negated else 'one'} of {listed(shown)}{case}"


def _text_match(expr: tree.TextMatch, negated: bool) -> str:
    case = " (in any case of letters)" if expr.ignore_case else ""
    shown = [f'"{pattern}"' for pattern in expr.patterns[:_SHOWN]]
    if len(expr.patterns) > _SHOWN:
        shown.append(f"{len(expr.patterns) - _SHOWN:,} more")
    patterns = listed(shown, "or")
    verb, opposite = ("looks like", "does not look like")
    first = expr.patterns[0]
    core = first.strip("*")
    if expr.kind == "regex":
        verb, opposite, patterns = "matches", "does not match", f"the expression {patterns}"
    elif len(expr.patterns) == 1 and core and "*" not in core and "?" not in core:
        ends, patterns = (first.startswith("*"), first.endswith("*")), f'"{core}"'
        verb, opposite = {
            (False, True): ("begins with", "does not begin with"),
            (True, False): ("ends with", "does not end with"),
            (True, True): ("contains", "does not contain"),
        }.get(ends, ("is", "is not"))
    return f"{value_words(expr.operand)} {opposite if negated else verb} {patterns}{case}"


def _seen_phrase(expr: tree.History, verb: str) -> str:
    among = "" if expr.where is None else f", among events in which {condition_words(expr.where)}"
    what = "it" if expr.value is None else value_words(expr.value)
    return f"this {what} {verb} in the {span_words(expr.span_ms)} before{among}"


def value_words(expr: tree.Expr) -> str:
    """A value as a noun phrase."""
    match expr:
        case tree.Literal(value):
            return scalar_words(value)
        case tree.Field(path):
            return {"@time": "the time", "@type": "the type"}.get(path, path)
        case tree.OfStep(step, value):
            return f"the {value_words(value).removeprefix('the ')} of {step}"
        case tree.Aggregate():
            return _aggregate(expr)
        case tree.History():
            return _history(expr)
        case tree.Binary(op) if op in _ARITHMETIC:
            return _arithmetic(expr)
        case tree.Unary("-", operand):
            return f"minus {_operand(operand, '*')}"
        case tree.Call(name, args) if name not in _TEXT_CALLS and name != "cidr":
            return _call(name, args)
    return condition_words(expr)


def _arithmetic(expr: tree.Binary) -> str:
    if is_difference(expr):
        since = _operand_phrase(expr.right)
        is_now = expr.left == tree.Field("@time")
        return f"the time since {since}" if is_now else f"the time from {since} to {_operand_phrase(expr.left)}"
    value = expr.right.value if isinstance(expr.right, tree.Literal) else None
    unit = next((name for unit, name in _UNIT_NAMES.items() if UNITS[unit] == value and unit != "ms"), None)
    if expr.op == "/" and unit is not None and any(is_difference(part) for part in walk(expr.left)):
        return f"{_operand(expr.left, '/')} in {unit}s"
    return f"{_operand(expr.left, expr.op)} {_ARITHMETIC[expr.op]} {_operand(expr.right, expr.op)}"


def _operand(expr: tree.Expr, op: str) -> str:
    text = value_words(expr)
    loose = isinstance(expr, tree.Binary) and expr.op in ("+", "-") and op not in ("+", "-") and not is_difference(expr)
    return f"({text})" if loose else text


def _operand_phrase(expr: tree.Expr) -> str:
    match expr:
        case tree.OfStep(step, _):
            return step
        case tree.History("prev", _, span_ms, where):
            among = "" if where is None else f", counting events in which {condition_words(where)}"
            return f"the event before it (at most {duration_words(span_ms)} back{among})"
        case tree.Aggregate(function, target, _):
            which = {"min": "first", "max": "last"}.get(function, function)
            return f"the {which} {target or 'event'}"
    return "this event" if is_moment(expr) else value_words(expr)


def _aggregate(expr: tree.Aggregate) -> str:
    of = f" of {expr.target}" if expr.target else ""
    if expr.value is None:
        return f"the number of {expr.target} events" if expr.target else "the number of events"
    value = value_words(expr.value)
    if expr.function == "distinct":
        return f"the number of different {value} values{of}"
    if expr.function == "values":
        return f"the list of different {value} values{of}"
    return f"{_FOLDS[expr.function]} {value}{of}"


def _history(expr: tree.History) -> str:
    back = f"in the {span_words(expr.span_ms)} before"
    among = "" if expr.where is None else f", counting events in which {condition_words(expr.where)}"
    if expr.value is None:
        return f"the number of such events {back}{among}"
    value = value_words(expr.value)
    if expr.function == "prev":
        return f"the {value} of the event before (at most {duration_words(expr.span_ms)} back{among})"
    if expr.function == "distinct":
        return f"the number of different {value} values {back}{among}"
    return f"{_FOLDS[expr.function]} {value} {back}{among}"


_CALLS: dict[str, Callable[[list[str]], str]] = {
    "lower": lambda args: f"{args[0]} in small letters",
    "upper": lambda args: f"{args[0]} in capital letters",
    "length": lambda args: f"the length of {args[0]}",
    "abs": lambda args: f"the size of {args[0]}",
    "round": lambda args: f"{args[0]}, rounded",
    "floor": lambda args: f"{args[0]}, rounded down",
    "ceil": lambda args: f"{args[0]}, rounded up",
    "number": lambda args: f"{args[0]} as a number",
    "string": lambda args: f"{args[0]} as text",
    "concat": lambda args: f"{' joined with '.join(args)}",
    "coalesce": lambda args: f"{args[0]} (or, where it is missing, {listed(args[1:], 'or')})" if args[1:] else args[0],
    "hour": lambda args: f"the hour of {args[0]}" + (f" in {args[1]}" if args[1:] else " (UTC)"),
    "day_of_week": lambda args: f"the day of the week of {args[0]} (Monday is 1)",
    "distance_km": lambda args: f"the distance in km from ({args[0]}, {args[1]}) to ({args[2]}, {args[3]})",
}


def _call(name: str, args: tuple[tree.Expr, ...]) -> str:
    shown = [value_words(arg) for arg in args]
    if name == "substring" and len(args) > 2:
        return f"the characters {_bare(args[1])} to {_bare(args[2])} of {shown[0]}"
    make = _CALLS.get(name)
    return make(shown) if make else f"{name.replace('_', ' ')} of {listed(shown)}"


def _bare(expr: tree.Expr) -> str:
    return str(expr.value) if isinstance(expr, tree.Literal) else value_words(expr)
