"""The functions of the language: names, how many and what arguments they take, what they give. No implementation.

Kinds of values: text, number, boolean, null, list, and any (not known before an event is at hand).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TEXT, NUMBER, BOOLEAN, NULL, LIST, ANY = "text", "number", "boolean", "null", "list", "any"


@dataclass(frozen=True)
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
    Function("lower", (TEXT,), TEXT, "lower(name)"),
    Function("upper", (TEXT,), TEXT, "upper(name)"),
    Function("length", (TEXT,), NUMBER, "length(name)"),
    Function("starts_with", (TEXT, TEXT), BOOLEAN, 'starts_with(name, "a")'),
    Function("ends_with", (TEXT, TEXT), BOOLEAN, 'ends_with(name, ".exe")'),
    Function("contains", (TEXT, TEXT), BOOLEAN, 'contains(name, "admin")'),
    Function("substring", (TEXT, NUMBER, NUMBER), TEXT, "substring(card, 0, 6)", optional=1),
    Function("concat", (ANY,), TEXT, 'concat(user, "@", host)', rest=ANY),
    Function("number", (ANY, NUMBER), NUMBER, "number(port)", optional=1),
    Function("string", (ANY,), TEXT, "string(port)"),
    Function("index_of", (TEXT, TEXT, NUMBER), NUMBER, 'index_of(path, "/")', optional=1),
    Function("between", (ANY, ANY, ANY, BOOLEAN), ANY, 'between(path, "<", ">")', optional=1),
    Function("abs", (NUMBER,), NUMBER, "abs(change)"),
    Function("round", (NUMBER, NUMBER), NUMBER, "round(amount, 2)", optional=1),
    Function("floor", (NUMBER,), NUMBER, "floor(amount)"),
    Function("ceil", (NUMBER,), NUMBER, "ceil(amount)"),
    Function("coalesce", (ANY,), None, "coalesce(nick, name)", rest=ANY),
    Function("hour", (NUMBER, TEXT), NUMBER, 'hour(@time, "Europe/Berlin")', optional=1),
    Function("day_of_week", (NUMBER, TEXT), NUMBER, 'day_of_week(@time, "Europe/Berlin")', optional=1),
    Function("cidr", (TEXT, TEXT), BOOLEAN, 'cidr(ip, "10.0.0.0/8")', rest=TEXT),
    Function("distance_km", (NUMBER, NUMBER, NUMBER, NUMBER), NUMBER, "distance_km(lat1, lon1, lat2, lon2)"),
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
