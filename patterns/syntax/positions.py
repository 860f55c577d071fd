"""Where a piece of text stands in its file, also when YAML has unindented, folded or unescaped it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from samovar.patterns.syntax.tree import Span

# From two offsets of a fragment's text to the span in its file.
Locate: TypeAlias = Callable[[int, int], Span]

_LINE_END = re.compile(r"\r\n|\n|\r")

_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.S)
_JOINED = re.compile(r"\\\r?\n[ \t]*")


def align(value: str, raw: str, style: str | None) -> list[int]:
    """Offsets in the raw text, which begins with the quote or the block's sign; one more for the end."""
    if style in ('"', "'"):
        return _quoted(value, raw, style)
    if style not in ("|", ">"):
        return _spread(value, raw, 0, 0)
    # How many columns YAML took off each line of a block: seen at its first line that is not blank.
    start, indent = raw.find("\n") + 1, 0
    line = next((line for line in raw[start:].split("\n") if line.strip()), None)
    if line is not None:
        first = next((text for text in value.split("\n") if text.strip()), "")
        indent = (len(line) - len(line.lstrip(" "))) - (len(first) - len(first.lstrip(" ")))
    return _spread(value, raw, _after_indent(raw, start, indent), indent)


def _spread(value: str, raw: str, at: int, indent: int) -> list[int]:
    """Of a plain or block scalar: only white space differs."""
    offsets = []
    for char in value:
        if char == "\n":
            offsets.append(min(at, len(raw)))
            found = raw.find("\n", at)
            at = len(raw) if found < 0 else _after_indent(raw, found + 1, indent)
            continue
        while at < len(raw) and raw[at] != char and raw[at].isspace():
            at += 1
        offsets.append(min(at, len(raw)))
        at += 1
    return [*offsets, min(at, len(raw))]


def _after_indent(raw: str, start: int, indent: int) -> int:
    """The start of a line's text; a blank line may be shorter than the indentation."""
    end = start
    while end < len(raw) and end - start < indent and raw[end] == " ":
        end += 1
    return end


def _quoted(value: str, raw: str, style: str) -> list[int]:
    at, offsets = 1, []
    for char in value:
        joined = _JOINED.match(raw, at) if style == '"' else None
        at = joined.end() if joined else at
        width = _escape_width(raw, at, style)
        if width == 1:
            while at < len(raw) and raw[at] != char and raw[at].isspace():
                at += 1
            width = _escape_width(raw, at, style)
        offsets.append(min(at, len(raw)))
        at += width
    return [*offsets, min(at, len(raw))]


def _escape_width(raw: str, at: int, style: str) -> int:
    """How many raw characters make the one at an offset."""
    if style == "'":
        return 2 if raw.startswith("''", at) else 1
    escape = _ESCAPE.match(raw, at)
    return escape.end() - at if escape else 1


@dataclass(frozen=True)
class SourceText:
    """A file's text, with its line table. Lines end where an editor ends them: LF, CR LF or CR."""

    text: str

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(end.end() for end in _LINE_END.finditer(self.text))]

    def span(self, start: int, end: int) -> Span:
        return Span(*self._place(start), *self._place(max(start, end)))

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


@dataclass(frozen=True)
class Fragment:
    """A text taken from a file: `places[i]` is the file's offset of its i-th character, and of its end."""

    text: str
    source: SourceText
    places: Sequence[int]

    def locate(self, start: int, end: int) -> Span:
        first = self.places[min(start, len(self.text))]
        last = self.places[min(end, len(self.text)) - 1] + 1 if end > start else first
        return self.source.span(first, max(first, last))

    def part(self, start: int, end: int) -> Fragment:
        return Fragment(self.text[start:end], self.source, self.places[start : end + 1])


def whole(text: str) -> Fragment:
    """A text that is a file by itself."""
    return Fragment(text, SourceText(text), range(len(text) + 1))
