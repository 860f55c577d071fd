"""The key of each bracket: its own `by`, the form's, or that of its event type."""

from __future__ import annotations

from dataclasses import dataclass, field

from samovar.patterns.parse.parser import MatchText
from samovar.patterns.semantics.resolve import resolve
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext, TooLarge
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import Bracket, Expr, Key, Literal, StepKind


@dataclass
class Keys:
    """Resolves `by` lists.

    Without a `by` on the form the first step's names are the key's. A bracket without one then takes the list of its
    own step's last alternative or of a step of the same type; a type without any belongs to no key (its key is null).
    """

    match: MatchText
    bench: CheckerContext
    kinds: dict[str, tuple[str, Key, str]] = field(default_factory=dict)

    @property
    def _positive(self) -> list[tuple[Bracket, ...]]:
        return [text.step.brackets for text in self.match.steps if text.step.kind is not StepKind.ABSENT]

    def _names(self) -> tuple[Key, ...] | None:
        """The list that gives the key its names; None for one key over all events."""
        if self.match.head.by is not None:
            return self.match.head.by
        lists = (bracket.by for brackets in self._positive for bracket in brackets)
        return next((by for by in lists if by is not None), None)

    def form_by(self) -> tuple[Key, ...]:
        names = self._names()
        if names is None:
            return ()
        first = next((bracket for brackets in self._positive for bracket in brackets), None)
        types = (first.type,) if first else ("any",)
        return tuple(Key(key.name, self._value(key, types, quiet=True)[0], key.span) for key in names)

    def of(self, bracket: Bracket, positive: bool) -> tuple[Key, ...]:
        names = self._names()
        if names is None:
            return ()
        listed = ", ".join(key.name for key in names)
        own = bracket.by if bracket.by is not None else self._inherited(bracket)
        if own is None:
            if positive:
                message, expected = "this step has no `by`, but others have", f"by FIELD, for the key ({listed})"
                self.bench.report.error("missing-key", message, bracket.span, expected=expected)
            else:
                message = f"`{bracket.type}` has no `by`, so it belongs to no key"
                hint = f"write `by FIELD` after the bracket, for the key ({listed})"
                self.bench.report.warning("no-key", message, bracket.span, hint=hint)
            return tuple(Key(key.name, Literal(None), key.span) for key in names)
        if len(own) != len(names):
            message = f"`by` names {len(own)} fields here and {len(names)} on the rest"
            hint = "same number and order everywhere"
            self.bench.report.error("key-count", message, own[0].span, expected=listed, hint=hint)
            return names
        return tuple(self._key(key, name.name, bracket.type) for key, name in zip(own, names, strict=True))

    def _inherited(self, bracket: Bracket) -> tuple[Key, ...] | None:
        if self.match.head.by is not None:
            return self.match.head.by
        for brackets in self._positive:
            if any(other.span == bracket.span for other in brackets) and brackets[-1].by is not None:
                return brackets[-1].by
        lists = (other.by for brackets in self._positive for other in brackets if other.type == bracket.type)
        return next((by for by in lists if by is not None), None)

    def _key(self, key: Key, name: str, event_type: str) -> Key:
        value, kind = self._value(key, (event_type,))
        if kind not in ("any", "null"):
            # Keys of different types never meet: 7 and "7" are two keys.
            first, at, first_type = self.kinds.setdefault(name, (kind, key, event_type))
            if first != kind:
                message = f"`{key.name}` of `{event_type}` is {kind}, but `{at.name}` of `{first_type}` is {first}"
                hint = "turn one into the other under `let`, with string(...) or number(...), and name that in `by`"
                expected = f'{first}, as 7 and "7" never meet'
                self.bench.report.error("key-type", message, key.span, expected=expected, hint=hint)
        return Key(name, value, key.span)

    def _value(self, key: Key, types: tuple[str, ...], quiet: bool = False) -> tuple[Expr, str]:
        place = ExpressionContext(types, "`by`")
        bench = self.bench if not quiet else CheckerContext(Report(""), None, None, self.bench.lets, self.bench.resolve)
        try:
            return resolve(key.value, place, bench)
        except TooLarge:
            bench.report.error("too-large", "the `let` is too large", key.span)
            return key.value, "any"
