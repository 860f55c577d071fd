"""Cuts the text of a match into pieces that parse on their own, and holds off text that would hurt a parser.

One pass of a linear scanner over the text: it finds what is never closed, nesting that is too deep, text that is too
long and characters that cannot be seen. The pieces are the head, the steps, the brackets in them, `until`, `having`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from samovar.patterns.findings import Report
from samovar.patterns.source import Locate

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
_PAIRS = {"(": ")", "{": "}", "[": "]"}
_UNCLOSED = {"/*": "comment", '"': "string", '"""': "string", "'": "string", "`": "name"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """A stretch of the text. `sound` is False where a fault in it has been reported already."""

    start: int
    end: int
    sound: bool = True


@dataclass
class Pieces:
    """`blanked` is the text with every bracket's inside turned to spaces, so that offsets stay."""

    blanked: str
    brackets: dict[int, Piece]
    head: Piece
    steps: list[Piece] = field(default_factory=list)
    until: list[Piece] = field(default_factory=list)
    having: list[Piece] = field(default_factory=list)


def cut_match(text: str, locate: Locate, report: Report) -> Pieces | None:
    """The pieces of a match; None, with a finding, where the text is not to be parsed at all."""
    tokens = scan(text, locate, report)
    if tokens is None:
        return None
    brackets, rest = _brackets(tokens, locate, report)
    blanked = _blank(text, brackets, rest)
    return _cut(blanked, {piece.start: piece for piece in brackets}, rest)


def sound_expression(text: str, locate: Locate, report: Report) -> bool:
    """Whether an expression outside of brackets may go to the parser; if not, a finding says why."""
    tokens = scan(text, locate, report)
    if tokens is None or any(token.kind == "unclosed" for token in tokens):
        return False
    sound, balance = True, _Balance(locate, report)
    for token in tokens:
        if token.text in ("[", "]"):
            report.error(
                "unexpected",
                f"`{token.text}` cannot stand here",
                locate(token.start, token.end),
                hint=_index_hint(text, token),
            )
            return False
        sound = balance.take(token) and sound
    return balance.close() and sound


def scan(text: str, locate: Locate, report: Report) -> list[Token] | None:
    """The tokens, without white space and comments. None, with a finding, when a bound is passed."""
    if len(text) > MAX_LENGTH:
        report.error(
            "too-long",
            f"{len(text):,} characters; at most {MAX_LENGTH:,} are read",
            locate(0, 1),
            hint="put long lists of values under `lists`",
        )
        return None
    tokens: list[Token] = []
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "sign"
        if kind == "skip":
            continue
        token = _checked(Token(kind, found.group(), found.start(), found.end()), text, locate, report)
        if token is None:
            return None
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            report.error("too-long", f"more than {MAX_TOKENS:,} words and signs", locate(token.start, token.end))
            return None
    return tokens if _nesting_is_bounded(tokens, locate, report) else None


def _checked(token: Token, text: str, locate: Locate, report: Report) -> Token | None:
    where = locate(token.start, token.end)
    if token.end - token.start > MAX_TOKEN_LENGTH:
        report.error("too-long", f"a single word or string of more than {MAX_TOKEN_LENGTH:,} characters", where)
        return None
    if token.kind == "unclosed":
        what = _UNCLOSED[token.text]
        report.error(
            "unclosed",
            f"this {what} is never closed",
            where,
            expected="*/" if what == "comment" else f"a closing {token.text}",
            hint=_unclosed_hint(token, text),
        )
    elif token.kind == "sign" and unicodedata.category(token.text)[0] in "CZ":
        report.error(
            "odd-character",
            f"{_character_name(token.text)} cannot stand here",
            where,
            hint="it cannot be seen: delete it and type the place anew",
        )
        return None
    elif token.kind == "text" and (odd := next(filter(_reorders, token.text), None)):
        report.warning(
            "odd-character",
            f"the string holds {_character_name(odd)}, which cannot be seen",
            where,
            hint="delete it, or write it as \\u{...}",
        )
    return token


def _unclosed_hint(token: Token, text: str) -> str | None:
    if token.text == "'":
        return "texts stand in double quotes"
    if token.text == '"' and "\n" in text[token.end :]:
        return 'a string ends on its own line; `"""` begins one that may be longer'
    return None


def _reorders(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cc", "Cs", "Zl", "Zp") and char not in "\n\r\t"


def _character_name(char: str) -> str:
    return f"the character U+{ord(char):04X} ({unicodedata.name(char, 'a control character')})"


def _nesting_is_bounded(tokens: list[Token], locate: Locate, report: Report) -> bool:
    depth = 0
    for token in tokens:
        depth = max(0, depth + (token.text in ("(", "{", "[")) - (token.text in (")", "}", "]")))
        if depth > MAX_NESTING:
            report.error("too-deep", f"nested more than {MAX_NESTING} levels deep", locate(token.start, token.end))
            return False
    return True


@dataclass
class _Balance:
    """Round and curly brackets, each closed once."""

    locate: Locate
    report: Report
    open: list[Token] = field(default_factory=list)

    def take(self, token: Token) -> bool:
        if token.text in ("(", "{"):
            self.open.append(token)
        elif token.text in (")", "}"):
            if not self.open or _PAIRS[self.open[-1].text] != token.text:
                self.report.error(
                    "unbalanced",
                    f"`{token.text}` closes nothing",
                    self.locate(token.start, token.end),
                    hint="delete it, or open it before",
                )
                return False
            self.open.pop()
        return True

    def close(self) -> bool:
        for token in self.open:
            self.report.error(
                "unclosed",
                f"`{token.text}` is never closed",
                self.locate(token.start, token.end),
                expected=f"`{_PAIRS[token.text]}`",
            )
        sound = not self.open
        self.open = []
        return sound


def _brackets(tokens: list[Token], locate: Locate, report: Report) -> tuple[list[Piece], list[Token]]:
    """The brackets, and the tokens outside of them, in which a bracket is one token of kind `bracket`."""
    pieces: list[Piece] = []
    rest: list[Token] = []
    opened: Token | None = None
    sound, balance, outside = True, _Balance(locate, report), _Balance(locate, report)

    def finish(start: int, end: int) -> None:
        nonlocal opened
        pieces.append(Piece(start, end, balance.close() and sound))
        rest.append(Token("bracket", "[]", start, end))
        opened = None

    for index, token in enumerate(tokens):
        if opened is None:
            if token.text == "[":
                opened, sound = token, True
            elif token.text == "]":
                report.error(
                    "unbalanced",
                    "`]` closes nothing",
                    locate(token.start, token.end),
                    hint="the bracket before it is closed already: delete this one",
                )
            elif outside.take(token):
                rest.append(token)
        elif token.text == "]":
            finish(opened.start, token.end)
        elif token.text == "[":
            _report_open_bracket(opened, tokens[index - 1], token, locate, report)
            sound, balance.open = False, []
            finish(opened.start, tokens[index - 1].end)
            opened, sound = token, True
        else:
            sound = sound and token.kind != "unclosed" and balance.take(token)
    if opened is not None:
        if sound:
            report.error("unclosed", "`[` is never closed", locate(opened.start, opened.end), expected="`]`")
        sound, balance.open = False, []
        finish(opened.start, tokens[-1].end)
    outside.close()
    return pieces, rest


def _report_open_bracket(opened: Token, before: Token, token: Token, locate: Locate, report: Report) -> None:
    if before.kind == "word" and before.end == token.start:
        report.error(
            "unexpected",
            "`[` cannot stand here",
            locate(token.start, token.end),
            hint="items of a list cannot be read by number",
        )
    else:
        report.error(
            "unclosed",
            "`[` is never closed",
            locate(opened.start, opened.end),
            expected=f"`]` before the next `[` on line {locate(token.start, token.end).line}",
        )


def _index_hint(text: str, token: Token) -> str:
    if token.text == "[" and text[: token.start][-1:].isalnum():
        return "items of a list cannot be read by number"
    return "brackets stand only in `match`"


def _blank(text: str, brackets: list[Piece], rest: list[Token]) -> str:
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


def _cut(blanked: str, brackets: dict[int, Piece], tokens: list[Token]) -> Pieces:
    starts = list(_starts(tokens))
    ends = [*(start for _, start in starts), len(blanked)]
    head_end = ends.pop(0)
    pieces = Pieces(blanked, brackets, Piece(0, head_end))
    for (kind, start), end in zip(starts, ends, strict=True):
        getattr(pieces, kind).append(Piece(start, end))
    return pieces


def _starts(tokens: list[Token]) -> Iterator[tuple[str, int]]:
    """Where each step, `until` and `having` begins. What follows `having` is one expression up to an `until`."""
    depth, joined, section = 0, False, "steps"
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        depth += (token.text == "{") - (token.text == "}")
        if depth > (token.text == "{"):
            continue
        if token.text == "until" and following and following.kind == "bracket":
            section, joined = "until", True
            yield "until", token.start
        elif token.text == "having" and token.kind == "word" and index > 0:
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


def _begins_step(token: Token, following: Token | None) -> bool:
    if token.kind == "bracket":
        return True
    if following is None:
        return False
    if token.text == "unordered":
        return following.text == "{"
    prefixes = ("!", "?", "next")
    return token.text in prefixes and (following.kind == "bracket" or following.text in (*prefixes, "unordered"))
