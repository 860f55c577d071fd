"""A linear scanner that holds off text which would hurt a parser.

It finds what is never closed, nesting that is too deep, text that is too long and characters that cannot be seen.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

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


@dataclass(frozen=True)
class ScannedToken:
    kind: str
    text: str
    start: int
    end: int


def scan(text: str, locate: Locate, report: Report) -> list[ScannedToken] | None:
    """The tokens, without white space and comments. None, with a finding, when a bound is passed."""
    if len(text) > MAX_LENGTH:
        hint = "put long lists of values under `lists`"
        report.error("too-long", f"{len(text):,} characters; at most {MAX_LENGTH:,} are read", locate(0, 1), hint=hint)
        return None
    tokens: list[ScannedToken] = []
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "sign"
        if kind == "skip":
            continue
        token = _checked(ScannedToken(kind, found.group(), found.start(), found.end()), text, locate, report)
        if token is None:
            return None
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            report.error("too-long", f"more than {MAX_TOKENS:,} words and signs", locate(token.start, token.end))
            return None
    return tokens if _nesting_is_bounded(tokens, locate, report) else None


def _checked(token: ScannedToken, text: str, locate: Locate, report: Report) -> ScannedToken | None:
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
        hint = "it cannot be seen: delete it and type the place anew"
        report.error("odd-character", f"{_character_name(token.text)} cannot stand here", where, hint=hint)
        return None
    elif token.kind == "text" and (odd := next(filter(_reorders, token.text), None)):
        message = f"the string holds {_character_name(odd)}, which cannot be seen"
        report.warning("odd-character", message, where, hint="delete it, or write it as \\u{...}")
    return token


def _unclosed_hint(token: ScannedToken, text: str) -> str | None:
    if token.text == "'":
        return "texts stand in double quotes"
    if token.text == '"' and "\n" in text[token.end :]:
        return 'a string ends on its own line; `"""` begins one that may be longer'
    return None


def _reorders(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cc", "Cs", "Zl", "Zp") and char not in "\n\r\t"


def _character_name(char: str) -> str:
    return f"the character U+{ord(char):04X} ({unicodedata.name(char, 'a control character')})"


def _nesting_is_bounded(tokens: list[ScannedToken], locate: Locate, report: Report) -> bool:
    depth = 0
    for token in tokens:
        depth = max(0, depth + (token.text in ("(", "{", "[")) - (token.text in (")", "}", "]")))
        if depth > MAX_NESTING:
            report.error("too-deep", f"nested more than {MAX_NESTING} levels deep", locate(token.start, token.end))
            return False
    return True
