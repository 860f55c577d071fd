"""From lark's tree to the raw tree: expressions. Faults go to the report, and a stand-in goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lark import Token, Tree

from samovar.patterns.parse.literals import Branch, Leaf, Literals
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.functions import FOLDABLE, HISTORY, OPERATORS, canonical
from samovar.patterns.syntax.textpatterns import check_pattern
from samovar.patterns.syntax.tree import (
    Binary,
    Call,
    Expr,
    History,
    In,
    Literal,
    Name,
    Span,
    TextMatch,
    Unary,
)

# Chains of `and` and `or` longer than this become balanced trees: they mean the same, and no walk goes deep.
LONG_CHAIN = 8

_HABIT_OPERATORS = {"=": "==", "<>": "!=", "=>": ">=", "=<": "<=", "===": "==", "!==": "!="}


class Builder(Literals):
    """Builds the expressions of one piece of text."""

    def expression(self, node: Leaf) -> Expr:
        assert isinstance(node, Tree)
        return _BUILDERS[str(node.data)](self, node)

    # ------------------------------------------------------------ operators

    def _chain(self, node: Branch) -> Expr:
        op = "or" if node.data == "disjunction" else "and"
        return _folded(op, [self.expression(child) for child in node.children])

    def _invert(self, node: Branch) -> Expr:
        return Unary("not", self.expression(node.children[1]), self.span(node))

    def _compare(self, node: Branch) -> Expr:
        left, op, right = node.children
        assert isinstance(op, Token)
        written = self._operator(op)
        return Binary(written, self.expression(left), self.expression(right), self.span(node), self.span(op))

    def _operator(self, op: Token) -> str:
        meant = _HABIT_OPERATORS.get(str(op))
        if meant is None:
            return str(op)
        self.report.error(
            "wrong-operator",
            f"`{op}` is no comparison",
            self.span(op),
            expected=f"`{meant}`",
            hint=f"write `{meant}`" + (": a single `=` sets an option" if op == "=" else ""),
        )
        return meant

    def _arithmetic(self, node: Branch) -> Expr:
        result = self.expression(node.children[0])
        for op, operand in zip(node.children[1::2], node.children[2::2], strict=True):
            assert isinstance(op, Token)
            right = self.expression(operand)
            result = Binary(str(op), result, right, _around(result.span, right.span), self.span(op))
        return result

    def _negative(self, node: Branch) -> Expr:
        operand = self.expression(node.children[1])
        value = operand.value if isinstance(operand, Literal) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Literal(-value, self.span(node))
        return Unary("-", operand, self.span(node))

    def _nested(self, node: Branch) -> Expr:
        return replace(self.expression(node.children[0]), span=self.span(node))

    # ------------------------------------------------------------ lists and patterns

    def _among(self, node: Branch) -> Expr:
        operand, negated, kind, items = node.children
        assert isinstance(items, Tree)
        if items.data == "literal" and not self._is_list(items.children[0]):
            values: list[Expr] = [self.expression(items)]
            self.report.error("no-list", f"`{kind}` takes a list", self.span(items), expected='(1, 2), ("a") or $list')
        else:
            values = self._listed(items, "at least one value")
        folded = str(kind).endswith("~")
        return In(self.expression(operand), tuple(values), negated is not None, folded, self.span(node))

    def _is_list(self, token: Leaf) -> bool:
        """Whether a literal is a list, or an unknown name of which its own error will tell."""
        return isinstance(token, Token) and token.type == "PARAM" and token[1:] not in self.constants.params

    def _listed(self, target: Branch, wanted: str) -> list[Expr]:
        children = target.children if target.data == "list" else [target]
        if not any(children):
            self.report.error("empty-list", "the list is empty", self.span(target), expected=wanted)
        return [item for child in children for item in self._items(child)]

    def _items(self, node: Leaf) -> list[Expr]:
        """An item of a list; `$name` may stand for several."""
        token = _param(node)
        if token is not None and (values := self.constants.lists.get(token[1:])) is not None:
            span = self.span(token)
            return [Literal(value, span) for value in values]
        if token is not None and token[1:] not in self.constants.params:
            self.scalar(token)
            return []
        return [self.expression(node)] if node is not None else []

    def _text(self, node: Branch) -> Expr:
        operand, negated, sign, target = node.children
        assert isinstance(sign, Token)
        assert isinstance(target, Tree)
        items = self._listed(target, "at least one pattern")
        kind = "regex" if sign.startswith("regex") else "like"
        result = self._fits(kind, sign, self.expression(operand), items, self.span(node))
        return Unary("not", result, self.span(node)) if negated is not None else result

    def _fits(self, kind: str, sign: Token, operand: Expr, items: list[Expr], span: Span) -> Expr:
        """Any of the patterns. EQL's `:` also takes numbers and booleans, which it compares."""
        patterns, others = [], []
        for item in items:
            if isinstance(item, Literal) and isinstance(item.value, str):
                patterns.append(item.value)
                check_pattern(kind, item.value, item.span, self.report)
            elif isinstance(item, Literal) and sign == ":" and item.value is not None:
                others.append(item)
            else:
                message = f"`{sign}` takes text"
                hint = "to compare with a field write `==`"
                self.report.error("no-pattern", message, item.span, expected=_PATTERN_EXAMPLE[kind], hint=hint)
        parts: list[Expr] = [TextMatch(kind, operand, tuple(patterns), sign != kind, span)] if patterns else []
        if others:
            parts.append(In(operand, tuple(others), False, False, span))
        return _folded("or", parts) if parts else Literal(True, span)

    # ------------------------------------------------------------ names, calls, literals

    def _name(self, node: Branch) -> Expr:
        optional, path = node.children
        assert isinstance(path, Token)
        return Name(("?" if optional is not None else "") + path_text(path), self.span(node))

    def _call(self, node: Branch) -> Expr:
        parts: list[Leaf] = list(node.children)
        path, tilde, *raw_args, raw_where = parts
        assert isinstance(path, Token)
        name, span = canonical(str(path)), self.span(node)
        where = self.expression(raw_where) if raw_where is not None else None
        present = [arg for arg in raw_args if arg is not None]
        span_ms = self._time(present[-1]) if name in HISTORY and present else None
        if span_ms is not None:
            return self._history(name, [self.expression(arg) for arg in present[:-1]], span_ms, where, span)
        args = tuple(self.expression(arg) for arg in present)
        if name in OPERATORS and len(args) == 2 and where is None and tilde is None:
            return Binary(OPERATORS[name], args[0], args[1], span, self.span(path))
        if tilde is not None:
            args = self._folded_args(name, path, args)
        return Call(name, args, where, span)

    def _history(self, name: str, values: list[Expr], span_ms: int, where: Expr | None, span: Span) -> Expr:
        wanted = 0 if name == "count" else 1
        if len(values) != wanted:
            example = "count(1h)" if name == "count" else f"{name}(amount, 30d)"
            message = f"`{name}` over a time takes {wanted} field{'s'[wanted:]} before it"
            self.report.error("argument-count", message, span, expected=example)
            values = values[:wanted] or [Literal(None, span)] * wanted
        return History(name, values[0] if values else None, span_ms, where, span)

    def _time(self, node: Leaf) -> int | None:
        """The time that an argument is, if it is written as one."""
        token = node.children[0] if isinstance(node, Tree) and node.data == "literal" else None
        if not isinstance(token, Token):
            return None
        if token.type == "DURATION":
            return self._positive(self.duration(token), token)
        if token.type == "BAD_UNIT":
            return int(self.bad_unit(token))
        if token.type == "PARAM":
            value = self.constants.params.get(token[1:])
            if token[1:] in self.constants.durations:
                return self._positive(int(value or 0), token)
            return duration_ms(value) if isinstance(value, str) else None
        return None

    def _positive(self, ms: int, token: Token) -> int:
        if ms == 0:
            message = "a time of zero looks back at nothing"
            self.report.error("zero-duration", message, self.span(token), expected="a time such as 30d")
        return ms

    def _folded_args(self, name: str, path: Token, args: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if name not in FOLDABLE:
            hint = "compare lower(...) with lower-case text"
            self.report.error("no-tilde", f"`{name}` has no form with `~`", self.span(path), hint=hint)
            return args
        return tuple(Call("lower", (arg,), None, arg.span) for arg in args[:2]) + args[2:]

    def _literal(self, node: Branch) -> Expr:
        token = node.children[0]
        assert isinstance(token, Token)
        value = self.scalar(token)
        if token.type == "PARAM" and token[1:] not in self.constants.params:
            # Reported: what goes on is a value of which nothing is known.
            return Name(f"?{token}", self.span(token))
        return Literal(value, self.span(token))


_PATTERN_EXAMPLE = {"like": 'a pattern such as "a*"', "regex": 'a regular expression such as "^a.+z$"'}

_BUILDERS: dict[str, Callable[[Builder, Branch], Expr]] = {
    "disjunction": Builder._chain,
    "conjunction": Builder._chain,
    "invert": Builder._invert,
    "compare": Builder._compare,
    "among": Builder._among,
    "text": Builder._text,
    "sum": Builder._arithmetic,
    "product": Builder._arithmetic,
    "negative": Builder._negative,
    "nested": Builder._nested,
    "name": Builder._name,
    "call": Builder._call,
    "literal": Builder._literal,
}


def path_text(path: str) -> str:
    """A dotted name without its backticks."""
    return path.replace("`", "")


def _param(node: Leaf) -> Token | None:
    token = node.children[0] if isinstance(node, Tree) and node.data == "literal" else node
    return token if isinstance(token, Token) and token.type == "PARAM" else None


def _around(left: Span, right: Span) -> Span:
    return Span(left.line, left.column, right.end_line, right.end_column)


def _folded(op: str, parts: list[Expr]) -> Expr:
    """`a and b and c`, from the left; a long chain halves itself instead."""
    if len(parts) > LONG_CHAIN:
        middle = len(parts) // 2
        left, right = _folded(op, parts[:middle]), _folded(op, parts[middle:])
        return Binary(op, left, right, _around(left.span, right.span))
    result = parts[0]
    for part in parts[1:]:
        result = Binary(op, result, part, _around(result.span, part.span))
    return result
