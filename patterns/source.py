"""Where a piece of text stands in its file, also when YAML has unindented, folded or unescaped it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from samovar.patterns.syntax import Span

# From two offsets of a fragment's text to the span in its file.
Locate: TypeAlias = Callable[[int, int], Span]

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Source:
    """A file's text, with its line table. Lines end where an editor ends them: LF, CR LF or CR."""

    text: str

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(end.end() for end in _LINE_END.finditer(self.text))]

    def span(self, start: int, end: int) -> Span:
        line, column = self._place(start)
        end_line, end_column = self._place(max(start, end))
        return Span(line, column, end_line, end_column)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


@dataclass(frozen=True)
class Fragment:
    """A text taken from a file: `places[i]` is the file's offset of its i-th character, and of its end."""

    text: str
    source: Source
    places: Sequence[int]

    def locate(self, start: int, end: int) -> Span:
        first = self.places[min(start, len(self.text))]
        last = self.places[min(end, len(self.text)) - 1] + 1 if end > start else first
        return self.source.span(first, max(first, last))

    def part(self, start: int, end: int) -> Fragment:
        return Fragment(self.text[start:end], self.source, self.places[start : end + 1])


def whole(text: str) -> Fragment:
    """A text that is a file by itself."""
    return Fragment(text, Source(text), range(len(text) + 1))
