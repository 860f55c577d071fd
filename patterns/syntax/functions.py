"""The functions of the language: names, how many and what arguments they take, what they give. No implementation.

Kinds of values: text, number, boolean, null, list, and any (not known before an event is at hand).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TEXT, NUMBER, BOOLEAN, NULL, LIST, ANY = "text", "number", "boolean", "null", "list", "any"


@dataclass(frozen=True, kw_only=True)
class Function:
    """`args` are the kinds of the arguments; the last `optional` may be left out; `rest` more of one kind may follow.

    `result` None: the kind of the arguments, where they agree.
    """

    name: str
    args: tuple[str, ...]
    result: str | None
    example: str
    optional: int = 0
    rest: str | None = None

    @property
    def least(self) -> int:
        return len(self.args) - self.optional

    @property
    def most(self) -> int | None:
        return None if self.rest else len(self.args)

    def kind(self, index: int) -> str:
        """The kind of the argument at an index, also among the rest."""
        return self.args[index] if index < len(self.args) else self.rest or ANY


_FUNCTIONS = (
    Function(name="lower", args=(TEXT,), result=TEXT, example="lower(name)"),
    Function(name="upper", args=(TEXT,), result=TEXT, example="upper(name)"),
    Function(name="length", args=(TEXT,), result=NUMBER, example="length(name)"),
    Function(name="starts_with", args=(TEXT, TEXT), result=BOOLEAN, example='starts_with(name, "a")'),
    Function(name="ends_with", args=(TEXT, TEXT), result=BOOLEAN, example='ends_with(name, ".exe")'),
    Function(name="contains", args=(TEXT, TEXT), result=BOOLEAN, example='contains(name, "admin")'),
    Function(name="substring", args=(TEXT, NUMBER, NUMBER), result=TEXT, example="substring(card, 0, 6)", optional=1),
    Function(name="concat", args=(ANY,), result=TEXT, example='concat(user, "@", host)', rest=ANY),
    Function(name="number", args=(ANY, NUMBER), result=NUMBER, example="number(port)", optional=1),
    Function(name="string", args=(ANY,), result=TEXT, example="string(port)"),
    Function(name="index_of", args=(TEXT, TEXT, NUMBER), result=NUMBER, example='index_of(path, "/")', optional=1),
    Function(name="between", args=(ANY, ANY, ANY, BOOLEAN), result=ANY, example='between(path, "<", ">")', optional=1),
    Function(name="abs", args=(NUMBER,), result=NUMBER, example="abs(change)"),
    Function(name="round", args=(NUMBER, NUMBER), result=NUMBER, example="round(amount, 2)", optional=1),
    Function(name="floor", args=(NUMBER,), result=NUMBER, example="floor(amount)"),
    Function(name="ceil", args=(NUMBER,), result=NUMBER, example="ceil(amount)"),
    Function(name="coalesce", args=(ANY,), result=None, example="coalesce(nick, name)", rest=ANY),
    Function(name="hour", args=(NUMBER, TEXT), result=NUMBER, example='hour(@time, "Europe/Berlin")', optional=1),
    Function(
        name="day_of_week",
        args=(NUMBER, TEXT),
        result=NUMBER,
        example='day_of_week(@time, "Europe/Berlin")',
        optional=1,
    ),
    Function(name="cidr", args=(TEXT, TEXT), result=BOOLEAN, example='cidr(ip, "10.0.0.0/8")', rest=TEXT),
    Function(
        name="distance_km",
        args=(NUMBER, NUMBER, NUMBER, NUMBER),
        result=NUMBER,
        example="distance_km(lat1, lon1, lat2, lon2)",
    ),
)
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in _FUNCTIONS}

# Over the events taken: result kinds, None for that of the expression.
AGGREGATES: Mapping[str, str | None] = {
    "count": NUMBER, "sum": NUMBER, "avg": NUMBER, "min": None, "max": None, "stddev": NUMBER, "distinct": NUMBER,
    "first": None, "last": None, "values": LIST,
}  # fmt: skip

# Over the earlier events of the key and type in a time span.
HISTORY: Mapping[str, str | None] = {
    "seen": BOOLEAN, "count": NUMBER, "sum": NUMBER, "avg": NUMBER, "min": None, "max": None, "distinct": NUMBER,
    "prev": None,
}  # fmt: skip

# Functions of EQL under another name here. Its arithmetic functions are read as the operators.
ALIASES: Mapping[str, str] = {
    "cidr_match": "cidr", "string_contains": "contains", "day_of_the_week": "day_of_week", "ceiling": "ceil",
}  # fmt: skip
OPERATORS: Mapping[str, str] = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%"}

# May be followed by `~` as in EQL: both texts are compared in lower case.
FOLDABLE = frozenset({"starts_with", "ends_with", "contains", "index_of"})

ALL_NAMES = frozenset(FUNCTIONS) | frozenset(AGGREGATES) | frozenset(HISTORY)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def canonical(name: str) -> str:
    """The snake_case name of a function, from any way to write it.

    >>> [canonical(name) for name in ("startsWith", "cidrMatch", "lower")]
    ['starts_with', 'cidr', 'lower']
    """
    snake = _CAMEL.sub("_", name).lower() if not name.isupper() else name
    return ALIASES.get(snake, snake)
