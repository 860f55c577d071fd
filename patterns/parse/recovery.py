"""Cuts the text of a match into pieces that parse on their own, so that one fault hides no other.

The pieces are the head, the steps, the brackets in them, `until` and `having`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Locate

MAX_LENGTH = 64_000  # characters in a match or an expression
MAX_TOKENS = 10_000
MAX_TOKEN_LENGTH = 10_000
MAX_NESTING = 100

_TOKEN = re.compile(
    r"""
      (?P<skip>\s++|//[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)
    | (?P<text>\"{3}[^"]*+(?:"(?!"")[^"]*+)*+\"{3}|"(?!"")[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|`[^`\n]*+`|'[^'\n]*+')
    | (?P<unclosed>\"{3}|["`']|/\*)
    | (?P<word>\w++)
    | (?P<sign>.)
    """,
    re.X | re.S,
)
_UNCLOSED = {"/*": "comment", '"': "string", '"""': "string", "'": "string", "`": "name"}
_UNSEEN = ("Cf", "Cc", "Cs", "Zl", "Zp")

NO_INDEX = "items of a list cannot be read by number"

_PREFIXES = ("!", "?", "next")
_PAIRS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class ScannedToken:
    kind: str
    text: str
    start: int
    end: int


def _scan(text: str, locate: Locate, report: Report) -> list[ScannedToken] | None:
    """The tokens, without white space and comments. None, with a finding, for text that would hurt a parser: nesting
    that is too deep, text that is too long, and characters that cannot be seen.
    """
    if len(text) > MAX_LENGTH:
        message = f"{len(text):,} characters; at most {MAX_LENGTH:,} are read"
        report.error("too-long", message, locate(0, 1), hint="put long lists of values under `lists`")
        return None
    tokens: list[ScannedToken] = []
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "sign"
        if kind == "skip":
            continue
        token = ScannedToken(kind, found.group(), found.start(), found.end())
        if not _is_readable(token, text, locate, report):
            return None
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            report.error("too-long", f"more than {MAX_TOKENS:,} words and signs", locate(token.start, token.end))
            return None
    depth = 0
    for token in tokens:
        depth = max(0, depth + (token.text in ("(", "{", "[")) - (token.text in (")", "}", "]")))
        if depth > MAX_NESTING:
            report.error("too-deep", f"nested more than {MAX_NESTING} levels deep", locate(token.start, token.end))
            return None
    return tokens


def _is_readable(token: ScannedToken, text: str, locate: Locate, report: Report) -> bool:
    """Whether the text can be read on after a token; also reports what is never closed."""
    where = locate(token.start, token.end)
    if token.end - token.start > MAX_TOKEN_LENGTH:
        report.error("too-long", f"a single word or string of more than {MAX_TOKEN_LENGTH:,} characters", where)
        return False
    if token.kind == "unclosed":
        what, hint = _UNCLOSED[token.text], None
        if token.text == "'":
            hint = "texts stand in double quotes"
        elif token.text == '"' and "\n" in text[token.end :]:
            hint = 'a string ends on its own line; `"""` begins one that may be longer'
        expected = "*/" if what == "comment" else f"a closing {token.text}"
        report.error("unclosed", f"this {what} is never closed", where, expected=expected, hint=hint)
    elif token.kind == "sign" and unicodedata.category(token.text)[0] in "CZ":
        hint = "it cannot be seen: delete it and type that place again"
        report.error("odd-character", f"{_character_name(token.text)} cannot stand here", where, hint=hint)
        return False
    elif token.kind == "text":
        unseen = [char for char in token.text if unicodedata.category(char) in _UNSEEN and char not in "\n\r\t"]
        if unseen:
            message = f"the string holds {_character_name(unseen[0])}, which cannot be seen"
            report.warning("odd-character", message, where, hint="delete it, or write it as \\u{...}")
    return True


def _character_name(char: str) -> str:
    return f"the character U+{ord(char):04X} ({unicodedata.name(char, 'a control character')})"


@dataclass(frozen=True)
class TextPiece:
    """A stretch of the text. `sound` is False where a fault in it has been reported already."""

    start: int
    end: int
    sound: bool = True


@dataclass(kw_only=True)
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
    tokens = _scan(text, locate, report)
    if tokens is None:
        return None
    found = _Brackets(locate=locate, report=report)
    found.find(tokens)
    # Only what is outside of brackets, each bracket as `[  ]`, and stray signs left out.
    chars = ["\n" if char == "\n" else " " for char in text]
    for token in found.rest:
        if token.kind != "bracket":
            chars[token.start : token.end] = token.text
        elif token.end - token.start > 1:  # the grammar wants both signs, and an unclosed one may be a single character
            chars[token.start], chars[token.end - 1] = "[", "]"
    starts = list(_starts(found.rest))
    ends = [*(start for _, start in starts), len(text)]
    pieces = Pieces(
        blanked="".join(chars), brackets={piece.start: piece for piece in found.pieces}, head=TextPiece(0, ends.pop(0))
    )
    for (kind, start), end in zip(starts, ends, strict=True):
        sound = not any(start <= fault < end for fault in found.outside.faults)
        getattr(pieces, kind).append(TextPiece(start, end, sound))
    return pieces


def sound_expression(text: str, locate: Locate, report: Report) -> bool:
    """Whether an expression outside of brackets may go to the parser; if not, a finding says why."""
    tokens = _scan(text, locate, report)
    if tokens is None or any(token.kind == "unclosed" for token in tokens):
        return False
    sound, balance = True, _Balance(locate, report)
    for token in tokens:
        if token.text in ("[", "]"):
            is_index = token.text == "[" and text[: token.start][-1:].isalnum()
            hint = NO_INDEX if is_index else "brackets stand only in `match`"
            report.error("unexpected", f"`{token.text}` cannot stand here", locate(token.start, token.end), hint=hint)
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


@dataclass(kw_only=True)
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
            where = self.locate(token.start, token.end)
            if self.opened is None:
                if token.text == "[":
                    self.opened = token
                elif token.text == "]":
                    hint = "the bracket before it is closed already: delete this one"
                    self.report.error("unbalanced", "`]` closes nothing", where, hint=hint)
                elif self.outside.take(token):
                    self.rest.append(token)
            elif token.text == "[" and before is not None:
                # A bracket in a bracket: `args[0]`, or one that was not closed.
                if before.kind == "word" and before.end == token.start:
                    self.report.error("unexpected", "`[` cannot stand here", where, hint=NO_INDEX)
                    self.sound, self.indexing = False, True
                else:
                    self._report_open(self.opened, f"`]` before the next `[` on line {where.line}")
                    self._finish(self.opened, before.end)
                    self.opened = token
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

    def _report_open(self, opened: ScannedToken, expected: str) -> None:
        if self.sound:
            message = "`[` is never closed"
            self.report.error("unclosed", message, self.locate(opened.start, opened.end), expected=expected)
        self.sound, self.inside.open = False, []

    def _finish(self, opened: ScannedToken, end: int) -> None:
        self.pieces.append(TextPiece(opened.start, end, self.inside.close() and self.sound))
        self.rest.append(ScannedToken("bracket", "[]", opened.start, end))
        self.opened, self.sound, self.indexing = None, True, False


def _starts(tokens: list[ScannedToken]) -> Iterator[tuple[str, int]]:
    """Where each step, `until` and `having` begins. What follows `having` is one expression up to an `until`."""
    depth, joined, section = 0, False, "steps"
    for index, token in enumerate(tokens):
        before = tokens[index - 1].text if index else "by"
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        depth += (token.text == "{") - (token.text == "}")
        # A word after these is a name, whatever it says.
        named = token.kind == "word" and before in ("by", "as", ",")
        opens_group = token.text == "unordered" and following is not None and following.text == "{"
        before_step = following and (following.kind == "bracket" or following.text in (*_PREFIXES, "unordered"))
        is_prefix = token.text in _PREFIXES and before_step
        if depth > (token.text == "{") or named:
            continue
        if token.text == "until" and following and (following.kind == "bracket" or following.text in _PREFIXES):
            section, joined = "until", True
            yield "until", token.start
        elif token.text == "having":
            section = "having"
            yield "having", token.start
        elif section != "having" and (token.kind == "bracket" or opens_group or is_prefix):
            if not joined:
                yield "steps", token.start
            joined = token.kind != "bracket" and token.text != "unordered"
        elif token.text == "or":
            joined = True
        elif token.kind == "word" and token.text != "unordered" and section != "until":
            joined = False
