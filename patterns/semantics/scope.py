"""What an expression may read at its place in the rule, and what all places share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import Expr, LongList, Span

# Nodes of a whole rule once `let` is written out: a few lines of lets that use each other could otherwise be endless.
MAX_NODES = 20_000

# Levels of an expression, lets written out: whatever walks the tree later may do so by recursion.
MAX_DEPTH = 100

# A resolved expression and the kind of its value (functions.TEXT and so on).
Typed: TypeAlias = tuple[Expr, str]


@dataclass(frozen=True)
class ReadableStep:
    """A step or bracket that can be read by name: the event types it may hold."""

    types: tuple[str, ...]
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpressionContext:
    """Where an expression stands.

    `types` are those of the event at hand. `readable` are the steps it may read, `unreadable` the others and why.
    `aggregates` says over what aggregates run: "steps", "events" (of the other forms) or None. `history` may be used
    in conditions of brackets. `at` is set inside a `let`: its findings show where it is used. `lets` are those being
    written out, to find circles.
    """

    types: tuple[str, ...]
    what: str
    readable: Mapping[str, ReadableStep] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    aggregates: str | None = None
    history: bool = False
    at: Span | None = None
    lets: tuple[str, ...] = ()


@dataclass(kw_only=True)
class CheckerContext:
    """The tools of one rule's check."""

    report: Report
    schema: Schema | None
    known_fields: frozenset[str] | None
    lets: Mapping[str, Expr]
    long_lists: dict[LongList, LongList] = field(default_factory=dict)
    nodes: int = 0
    depth: int = 0
    exhausted: bool = False

    @cached_property
    def known_heads(self) -> frozenset[str]:
        """The first parts of the field paths seen in the data."""
        return frozenset(path.partition(".")[0] for path in self.known_fields or ())

    @contextmanager
    def inside(self, span: Span) -> Iterator[None]:
        """Counts a node and its level; raises TooLarge past a bound."""
        self.nodes += 1
        if self.nodes > MAX_NODES or self.depth >= MAX_DEPTH:
            raise TooLarge(span)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class TooLarge(Exception):
    """The rule has more than MAX_NODES nodes, or one of its expressions more than MAX_DEPTH levels."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


def where(span: Span, place: ExpressionContext) -> Span:
    return place.at or span


def one_of(names: Collection[str], limit: int = 12) -> str | None:
    """`a, b, c`, cut where it gets long."""
    shown = sorted(names)
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else None
