"""Literals: numbers, times, strings, `$name`, and what looks like one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lark import Token, Tree

from samovar.common.suggest import did_you_mean
from samovar.common.times import unit_hint
from samovar.patterns.syntax.constants import Constants, duration_ms
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Locate
from samovar.patterns.syntax.tree import Scalar, Span

Branch: TypeAlias = "Tree[Token]"
# Optional parts of a rule are None where they are missing.
Leaf: TypeAlias = "Branch | Token | None"

_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]{1,6}\}|.)", re.S)
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
_WORDS: dict[str, Scalar] = {"TRUE": True, "FALSE": False, "NULL": None}


@dataclass(frozen=True)
class Literals:
    """Reads the literals of one piece of text, which begins at offset `base` of what `locate` knows."""

    locate: Locate
    report: Report
    constants: Constants
    base: int = 0

    def span(self, node: Branch | Token) -> Span:
        start, end = _bounds(node)
        return self.locate(self.base + start, self.base + end)

    def scalar(self, token: Token) -> Scalar:
        """The value of a literal token."""
        if token.type in _WORDS:
            return _WORDS[token.type]
        if token.type == "PARAM":
            return self._parameter(token)
        if token.type == "QUOTED":
            text = str(token)[1:-1].replace('"', '\\"')
            message = "texts stand in double quotes"
            self.report.error("single-quotes", message, self.span(token), expected=f'"{text}"', hint=f'write "{text}"')
            return str(token)[1:-1]
        readers: dict[str, Callable[[Token], Scalar]] = {
            "NUMBER": self.number, "DURATION": self.duration, "STRING": self.string, "BAD_UNIT": self.bad_unit,
        }  # fmt: skip
        return readers[token.type](token) if token.type in readers else str(token)[3:-3]

    def number(self, token: Token) -> Scalar:
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
            if code.startswith("u{") and _is_character(int(code[2:-1], 16)):
                return chr(int(code[2:-1], 16))
            if code not in _ESCAPES:
                start, end = token.start_pos or 0, token.start_pos or 0
                where = self.locate(self.base + start + 1 + found.start(), self.base + end + 1 + found.end())
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


def _is_character(code: int) -> bool:
    return code < 0x110000 and not 0xD800 <= code < 0xE000


def _bounds(node: Branch | Token) -> tuple[int, int]:
    if isinstance(node, Token):
        return node.start_pos or 0, node.end_pos or 0
    return getattr(node.meta, "start_pos", 0), getattr(node.meta, "end_pos", 0)
