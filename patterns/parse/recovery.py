"""Cuts the text of a match into pieces that parse on their own, so that one fault hides no other.

The pieces are the head, the steps, the brackets in them, `until` and `having`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from samovar.patterns.parse.scanner import ScannedToken, scan
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Locate

NO_INDEX = "items of a list cannot be read by number"

_PREFIXES = ("!", "?", "next")
_PAIRS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class TextPiece:
    """A stretch of the text. `sound` is False where a fault in it has been reported already."""

    start: int
    end: int
    sound: bool = True


@dataclass
class Pieces:
    """`blanked` is the text with every bracket's inside turned to spaces, so that offsets stay."""

    blanked: str
    brackets: dict[int, TextPiece]
    head: TextPiece
    steps: list[TextPiece] = field(default_factory=list)
    until: list[TextPiece] = field(default_factory=list)
    having: list[TextPiece] = field(default_factory=list)


def cut_match(text: str, locate: Locate, report: Report) -> Pieces | None:
    """The pieces of a match; None, with a finding, where the text is not to be parsed at all."""
    tokens = scan(text, locate, report)
    if tokens is None:
        return None
    found = _Brackets(locate, report)
    found.find(tokens)
    brackets = {piece.start: piece for piece in found.pieces}
    return _cut(_blank(text, found.rest), brackets, found.rest, found.outside.faults)


def sound_expression(text: str, locate: Locate, report: Report) -> bool:
    """Whether an expression outside of brackets may go to the parser; if not, a finding says why."""
    tokens = scan(text, locate, report)
    if tokens is None or any(token.kind == "unclosed" for token in tokens):
        return False
    sound, balance = True, _Balance(locate, report)
    for token in tokens:
        if token.text in ("[", "]"):
            message = f"`{token.text}` cannot stand here"
            report.error("unexpected", message, locate(token.start, token.end), hint=_index_hint(text, token))
            return False
        sound = balance.take(token) and sound
    return balance.close() and sound


@dataclass
class _Balance:
    """Round and curly brackets, each closed once."""

    locate: Locate
    report: Report
    open: list[ScannedToken] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)

    def take(self, token: ScannedToken) -> bool:
        if token.text in ("(", "{"):
            self.open.append(token)
        elif token.text in (")", "}"):
            if not self.open or _PAIRS[self.open[-1].text] != token.text:
                message = f"`{token.text}` closes nothing"
                hint = "delete it, or open it before"
                self.report.error("unbalanced", message, self.locate(token.start, token.end), hint=hint)
                self.faults.append(token.start)
                return False
            self.open.pop()
        return True

    def close(self) -> bool:
        for token in self.open:
            message = f"`{token.text}` is never closed"
            expected = f"`{_PAIRS[token.text]}`"
            self.report.error("unclosed", message, self.locate(token.start, token.end), expected=expected)
            self.faults.append(token.start)
        sound = not self.open
        self.open = []
        return sound


@dataclass
class _Brackets:
    """Finds the brackets, and what stands outside of them; a bracket is one token of kind `bracket` there."""

    locate: Locate
    report: Report
    pieces: list[TextPiece] = field(default_factory=list)
    rest: list[ScannedToken] = field(default_factory=list)
    opened: ScannedToken | None = None
    sound: bool = True
    indexing: bool = False

    def __post_init__(self) -> None:
        self.inside = _Balance(self.locate, self.report)
        self.outside = _Balance(self.locate, self.report)

    def find(self, tokens: list[ScannedToken]) -> None:
        for before, token in zip([None, *tokens], tokens, strict=False):
            if self.opened is None:
                self._take_outside(token)
            elif token.text == "[" and before is not None:
                self._take_second(self.opened, before, token)
            elif token.text == "]" and self.indexing:
                self.indexing = False
            elif token.text == "]":
                self._finish(self.opened, token.end)
            else:
                self.sound = token.kind != "unclosed" and self.inside.take(token) and self.sound
        if self.opened is not None:
            self._report_open(self.opened, "`]`")
            self._finish(self.opened, tokens[-1].end)
        self.outside.close()

    def _take_outside(self, token: ScannedToken) -> None:
        if token.text == "[":
            self.opened = token
        elif token.text == "]":
            hint = "the bracket before it is closed already: delete this one"
            self.report.error("unbalanced", "`]` closes nothing", self.locate(token.start, token.end), hint=hint)
        elif self.outside.take(token):
            self.rest.append(token)

    def _take_second(self, opened: ScannedToken, before: ScannedToken, token: ScannedToken) -> None:
        """A bracket in a bracket: `args[0]`, or one that was not closed."""
        if before.kind == "word" and before.end == token.start:
            where = self.locate(token.start, token.end)
            self.report.error("unexpected", "`[` cannot stand here", where, hint=NO_INDEX)
            self.sound, self.indexing = False, True
            return
        line = self.locate(token.start, token.end).line
        self._report_open(opened, f"`]` before the next `[` on line {line}")
        self._finish(opened, before.end)
        self.opened = token

    def _report_open(self, opened: ScannedToken, expected: str) -> None:
        if self.sound:
            message = "`[` is never closed"
            self.report.error("unclosed", message, self.locate(opened.start, opened.end), expected=expected)
        self.sound, self.inside.open = False, []

    def _finish(self, opened: ScannedToken, end: int) -> None:
        self.pieces.append(TextPiece(opened.start, end, self.inside.close() and self.sound))
        self.rest.append(ScannedToken("bracket", "[]", opened.start, end))
        self.opened, self.sound, self.indexing = None, True, False


def _index_hint(text: str, token: ScannedToken) -> str:
    if token.text == "[" and text[: token.start][-1:].isalnum():
        return NO_INDEX
    return "brackets stand only in `match`"


def _blank(text: str, rest: list[ScannedToken]) -> str:
    """The text with only what is outside of brackets, each bracket as `[  ]`, and stray signs left out."""
    chars = ["\n" if char == "\n" else " " for char in text]
    for token in rest:
        if token.kind == "bracket":
            # An unclosed bracket may be a single character: the grammar wants both signs.
            chars[token.start] = "[" if token.end - token.start > 1 else " "
            chars[token.end - 1] = "]" if token.end - token.start > 1 else " "
        else:
            chars[token.start : token.end] = token.text
    return "".join(chars)


def _cut(blanked: str, brackets: dict[int, TextPiece], tokens: list[ScannedToken], faults: list[int]) -> Pieces:
    starts = list(_starts(tokens))
    ends = [*(start for _, start in starts), len(blanked)]
    head_end = ends.pop(0)
    pieces = Pieces(blanked, brackets, TextPiece(0, head_end))
    for (kind, start), end in zip(starts, ends, strict=True):
        sound = not any(start <= fault < end for fault in faults)
        getattr(pieces, kind).append(TextPiece(start, end, sound))
    return pieces


def _starts(tokens: list[ScannedToken]) -> Iterator[tuple[str, int]]:
    """Where each step, `until` and `having` begins. What follows `having` is one expression up to an `until`."""
    depth, joined, section = 0, False, "steps"
    for index, token in enumerate(tokens):
        before = tokens[index - 1].text if index else "by"
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        depth += (token.text == "{") - (token.text == "}")
        # A word after these is a name, whatever it says.
        named = token.kind == "word" and before in ("by", "as", ",")
        if depth > (token.text == "{") or named:
            continue
        if token.text == "until" and following and (following.kind == "bracket" or following.text in _PREFIXES):
            section, joined = "until", True
            yield "until", token.start
        elif token.text == "having":
            section = "having"
            yield "having", token.start
        elif section != "having" and _begins_step(token, following):
            if not joined:
                yield "steps", token.start
            joined = token.kind != "bracket" and token.text != "unordered"
        elif token.text == "or":
            joined = True
        elif token.kind == "word" and token.text != "unordered" and section != "until":
            joined = False


def _begins_step(token: ScannedToken, following: ScannedToken | None) -> bool:
    if token.kind == "bracket":
        return True
    if following is None:
        return False
    if token.text == "unordered":
        return following.text == "{"
    return token.text in _PREFIXES and (following.kind == "bracket" or following.text in (*_PREFIXES, "unordered"))
