"""From lark's tree to the raw tree: expressions and their literals. Faults go to the report, and a stand-in goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from lark import Token, Tree

from samovar.common.suggest import did_you_mean
from samovar.common.times import unit_hint
from samovar.patterns.syntax.constants import Constants, duration_ms
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.functions import FOLDABLE, HISTORY, OPERATORS, canonical
from samovar.patterns.syntax.positions import Locate
from samovar.patterns.syntax.tree import Binary, Call, Expr, History, In, Literal, Name, Scalar, Span, TextMatch, Unary

Branch: TypeAlias = "Tree[Token]"
# Optional parts of a rule are None where they are missing.
Leaf: TypeAlias = "Branch | Token | None"

MAX_REGEX_LENGTH = 2_000
MAX_LIKE_LENGTH = 2_000

# What RE2 may use for one compiled expression; a{1000}{1000} and the like do not fit.
MAX_PROGRAM_BYTES = 1 << 20

# Chains of `and` and `or` longer than this become balanced trees: they mean the same, and no walk goes deep.
LONG_CHAIN = 8

_HABIT_OPERATORS = {"=": "==", "<>": "!=", "=>": ">=", "=<": "<=", "===": "==", "!==": "!="}
_PATTERN_EXAMPLE = {"like": 'a pattern such as "a*"', "regex": 'a regular expression such as "^a.+z$"'}
_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]{1,6}\}|.)", re.S)
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
_WORDS: dict[str, Scalar] = {"TRUE": True, "FALSE": False, "NULL": None}


@dataclass(frozen=True)
class Builder:
    """Builds the expressions of one piece of text, which begins at offset `base` of what `locate` knows."""

    locate: Locate
    report: Report
    constants: Constants
    base: int = 0

    def span(self, node: Branch | Token) -> Span:
        place = node if isinstance(node, Token) else node.meta
        start, end = getattr(place, "start_pos", 0) or 0, getattr(place, "end_pos", 0) or 0
        return self.locate(self.base + start, self.base + end)

    def expression(self, node: Leaf) -> Expr:
        """Calls the method below that is named after the grammar's rule."""
        assert isinstance(node, Tree)
        built: Expr = getattr(self, f"_{node.data}")(node)
        return built

    def _disjunction(self, node: Branch) -> Expr:
        return _fold_chain("or", [self.expression(child) for child in node.children])

    def _conjunction(self, node: Branch) -> Expr:
        return _fold_chain("and", [self.expression(child) for child in node.children])

    def _invert(self, node: Branch) -> Expr:
        return Unary("not", self.expression(node.children[1]), self.span(node))

    def _compare(self, node: Branch) -> Expr:
        left, op, right = node.children
        assert isinstance(op, Token)
        meant = _HABIT_OPERATORS.get(str(op))
        if meant is not None:
            hint = f"write `{meant}`" + (": a single `=` sets an option" if op == "=" else "")
            message = f"`{op}` is no comparison"
            self.report.error("wrong-operator", message, self.span(op), expected=f"`{meant}`", hint=hint)
        sides = self.expression(left), self.expression(right)
        return Binary(meant or str(op), *sides, self.span(node), self.span(op))

    def _sum(self, node: Branch) -> Expr:
        result = self.expression(node.children[0])
        for op, operand in zip(node.children[1::2], node.children[2::2], strict=True):
            assert isinstance(op, Token)
            right = self.expression(operand)
            result = Binary(str(op), result, right, _around(result.span, right.span), self.span(op))
        return result

    _product = _sum

    def _negative(self, node: Branch) -> Expr:
        operand = self.expression(node.children[1])
        value = operand.value if isinstance(operand, Literal) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Literal(-value, self.span(node))
        return Unary("-", operand, self.span(node))

    def _nested(self, node: Branch) -> Expr:
        return replace(self.expression(node.children[0]), span=self.span(node))

    def _among(self, node: Branch) -> Expr:
        operand, negated, kind, items = node.children
        assert isinstance(items, Tree)
        token = items.children[0] if items.data == "literal" else None
        # A name that is no parameter is a list, or unknown: of that its own error will tell.
        is_param = isinstance(token, Token) and token.type == "PARAM" and token[1:] not in self.constants.params
        if items.data == "literal" and not is_param:
            values: list[Expr] = [self.expression(items)]
            self.report.error("no-list", f"`{kind}` takes a list", self.span(items), expected='(1, 2), ("a") or $list')
        else:
            values = self._listed(items, "at least one value")
        folded = str(kind).endswith("~")
        return In(self.expression(operand), tuple(values), negated is not None, folded, self.span(node))

    def _listed(self, target: Branch, wanted: str) -> list[Expr]:
        """The items of a list; `$name` may stand for several."""
        children = target.children if target.data == "list" else [target]
        if not any(children):
            self.report.error("empty-list", "the list is empty", self.span(target), expected=wanted)
        items: list[Expr] = []
        for child in children:
            token = child.children[0] if isinstance(child, Tree) and child.data == "literal" else child
            name = str(token)[1:] if isinstance(token, Token) and token.type == "PARAM" else ""
            if isinstance(token, Token) and name in self.constants.lists:
                span = self.span(token)
                items += [Literal(value, span) for value in self.constants.lists[name]]
            elif isinstance(token, Token) and name and name not in self.constants.params:
                self.scalar(token)
            elif child is not None:
                items.append(self.expression(child))
        return items

    def _text(self, node: Branch) -> Expr:
        """Any of the patterns. EQL's `:` also takes numbers and booleans, which it compares."""
        raw_operand, negated, sign, target = node.children
        assert isinstance(sign, Token)
        assert isinstance(target, Tree)
        span = self.span(node)
        items = self._listed(target, "at least one pattern")
        kind = "regex" if sign.startswith("regex") else "like"
        operand = self.expression(raw_operand)
        patterns, others = [], []
        for item in items:
            if isinstance(item, Literal) and isinstance(item.value, str):
                patterns.append(item.value)
                _check_pattern(kind, item.value, item.span, self.report)
            elif isinstance(item, Literal) and sign == ":" and item.value is not None:
                others.append(item)
            else:
                message = f"`{sign}` takes text"
                hint = "to compare with a field write `==`"
                self.report.error("no-pattern", message, item.span, expected=_PATTERN_EXAMPLE[kind], hint=hint)
        parts: list[Expr] = [TextMatch(kind, operand, tuple(patterns), sign != kind, span)] if patterns else []
        if others:
            parts.append(In(operand, tuple(others), False, False, span))
        result = _fold_chain("or", parts) if parts else Literal(True, span)
        return Unary("not", result, span) if negated is not None else result

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
        if tilde is not None and name not in FOLDABLE:
            hint = "compare lower(...) with lower-case text"
            self.report.error("no-tilde", f"`{name}` has no form with `~`", self.span(path), hint=hint)
        elif tilde is not None:
            args = tuple(Call("lower", (arg,), None, arg.span) for arg in args[:2]) + args[2:]
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
        if not isinstance(token, Token) or token.type not in ("DURATION", "BAD_UNIT", "PARAM"):
            return None
        if token.type == "BAD_UNIT":
            return self.bad_unit(token)
        value = self.constants.params.get(token[1:])
        if token.type == "PARAM" and token[1:] not in self.constants.durations:
            return duration_ms(value) if isinstance(value, str) else None
        ms = self.duration(token) if token.type == "DURATION" else int(value or 0)
        if ms == 0:
            message = "a time of zero looks back at nothing"
            self.report.error("zero-duration", message, self.span(token), expected="a time such as 30d")
        return ms

    def _literal(self, node: Branch) -> Expr:
        token = node.children[0]
        assert isinstance(token, Token)
        value = self.scalar(token)
        if token.type == "PARAM" and token[1:] not in self.constants.params:
            # Reported: what goes on is a value of which nothing is known.
            return Name(f"?{token}", self.span(token))
        return Literal(value, self.span(token))

    def scalar(self, token: Token) -> Scalar:
        """The value of a literal token."""
        if token.type in _WORDS:
            return _WORDS[token.type]
        if token.type == "QUOTED":
            text = str(token)[1:-1].replace('"', '\\"')
            message = "texts stand in double quotes"
            self.report.error("single-quotes", message, self.span(token), expected=f'"{text}"', hint=f'write "{text}"')
            return str(token)[1:-1]
        readers: dict[str, Callable[[Token], Scalar]] = {
            "NUMBER": self._number, "DURATION": self.duration, "STRING": self.string, "BAD_UNIT": self.bad_unit,
            "PARAM": self._parameter,
        }  # fmt: skip
        return readers[token.type](token) if token.type in readers else str(token)[3:-3]

    def _number(self, token: Token) -> Scalar:
        text = str(token)
        if text.isdigit() and len(text) < 19:
            return int(text)
        value = float(text)
        if math.isinf(value):
            self.report.error("number-too-large", "the number is too large", self.span(token))
            return 0
        return value

    def duration(self, token: Token) -> int:
        ms = duration_ms(str(token))
        if ms is None:
            expected = "at most a hundred years"
            self.report.error("duration-too-long", "the time is too long", self.span(token), expected=expected)
            return 1
        return ms

    def string(self, token: Token) -> str:
        def unescape(found: re.Match[str]) -> str:
            code = found[1]
            character = int(code[2:-1], 16) if code.startswith("u{") else -1
            if 0 <= character < 0x110000 and not 0xD800 <= character < 0xE000:
                return chr(character)
            if code not in _ESCAPES:
                first = self.base + (token.start_pos or 0) + 1
                where = self.locate(first + found.start(), first + found.end())
                hint = 'write `\\\\` for a backslash, or """raw text"""'
                expected = r"one of \\ \" \n \t"
                self.report.error("unknown-escape", f"`{found[0]}` is no escape", where, expected=expected, hint=hint)
            return _ESCAPES.get(code, code)

        return _ESCAPE.sub(unescape, str(token)[1:-1])

    def bad_unit(self, token: Token) -> int:
        digits = str(token).replace("_", "")
        tip = f"write `{digits}`" if digits.isdigit() else unit_hint(str(token))
        self.report.error("wrong-unit", f"`{token}` is neither a number nor a time", self.span(token), hint=tip)
        return 1

    def _parameter(self, token: Token) -> Scalar:
        name = str(token)[1:]
        if name in self.constants.params:
            return self.constants.params[name]
        if name in self.constants.lists:
            hint = f"lists stand after in: `field in ${name}`"
            expected = "a single value"
            self.report.error("list-as-value", f"`${name}` is a list", self.span(token), expected=expected, hint=hint)
            return None
        known = [*self.constants.params, *self.constants.lists]
        tip = did_you_mean(name, known) or f"declare it: `params: {{{name}: ...}}` or `lists: {{{name}: [...]}}`"
        listed = ", ".join(f"${key}" for key in sorted(known)) or None
        message = f"`${name}` is neither a parameter nor a list"
        self.report.error("unknown-parameter", message, self.span(token), expected=listed, hint=tip)
        return None


def path_text(path: str) -> str:
    """A dotted name without its backticks."""
    return path.replace("`", "")


def _around(left: Span, right: Span) -> Span:
    return Span(left.line, left.column, right.end_line, right.end_column)


def _fold_chain(op: str, parts: list[Expr]) -> Expr:
    """`a and b and c`, from the left; a long chain halves itself instead."""
    if len(parts) > LONG_CHAIN:
        middle = len(parts) // 2
        left, right = _fold_chain(op, parts[:middle]), _fold_chain(op, parts[middle:])
        return Binary(op, left, right, _around(left.span, right.span))
    result = parts[0]
    for part in parts[1:]:
        result = Binary(op, result, part, _around(result.span, part.span))
    return result


def _check_pattern(kind: str, pattern: str, span: Span, report: Report) -> None:
    """A pattern of `like` or `regex` as it stands in the rule."""
    if kind != "regex":
        if len(pattern) > MAX_LIKE_LENGTH:
            report.error("pattern-too-long", f"a pattern of more than {MAX_LIKE_LENGTH:,} characters", span)
        elif "%" in pattern and "*" not in pattern and "?" not in pattern:
            hint = f'`*` stands for any text: "{pattern.replace("%", "*")}"'
            report.warning("sql-pattern", "`%` is an ordinary character in `like`", span, hint=hint)
        return
    if len(pattern) > MAX_REGEX_LENGTH:
        report.error("regex-too-large", f"a regular expression of more than {MAX_REGEX_LENGTH:,} characters", span)
        return
    fault = _regex_fault(pattern)
    if fault is None:
        return
    tip = None
    if "repetition" in fault or "too large" in fault:
        tip = "use fewer or smaller {n} repetitions"
    elif any(word in fault for word in ("perl", "lookaround", "invalid escape", "group")):
        tip = 'RE2 has no lookahead, lookbehind or backreferences; `"""..."""` keeps backslashes as they are'
    report.error("bad-regex", f"not a regular expression: {fault}", span, expected="RE2 syntax", hint=tip)


@lru_cache(maxsize=256)
def _regex_fault(pattern: str) -> str | None:
    """What RE2 has against an expression, or None."""
    # Imported here: most rules have no regex, and the library costs start-up time.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    try:
        re2.compile(pattern, options)
    except re2.error as fault:
        reason = fault.args[0] if fault.args else "it does not parse"
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    except UnicodeError:
        return "it holds a character that cannot be written as UTF-8"
    return None
