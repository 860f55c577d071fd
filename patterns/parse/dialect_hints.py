"""What to say of text that does not parse: what was expected, and what habit from another language it may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TypeAlias

from samovar.common.suggest import nearest

_Hint: TypeAlias = str | Callable[[re.Match[str]], str]

_KEYWORDS = "and or not in like regex where by as with true false null sequence aggregate session window until having"
KEYWORDS = frozenset([*_KEYWORDS.split(), "next", "unordered", "over", "every"])

_SNAKE = {"startswith": "starts_with", "endswith": "ends_with"}

# Looked for where the fault stands, in this order.
_HERE: tuple[tuple[re.Pattern[str], _Hint], ...] = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"is\s+not\s+null\b", "write `!= null`"),
        (r"is\s+null\b", "write `== null`"),
        (r"(?i:is\s+not\s+null)\b", "write `!= null`"),
        (r"(?i:is\s+null)\b", "write `== null`"),
        (r"is\s+not\b", "write `!=`"),
        (r"is\b", "write `==`"),
        (r"&&?", "write `and`"),
        (r"\|\s*(head|tail)\b", "pipes are not part of the language: `suppress: 1h` limits the alerts of a key"),
        (r"\|\s*unique", "pipes are not part of the language: `suppress: 1h` alerts once a key in that time"),
        (r"\|\s*(count|filter|sort)\b", "pipes are not part of the language: count with `aggregate`"),
        (r"\|\|", "write `or`"),
        (r"\|", "pipes are not part of the language: use `suppress`, `having` or `aggregate`"),
        (r"!(?:in|like|regex)\b", lambda found: f"write `not {found.group()[1:]}`"),
        (r"=~|~=|~", 'write `regex "..."` or `like "..."`'),
        (r"(?:matches|rlike|match)\b", 'write `regex "..."`'),
        (r"(?:between|BETWEEN)\b", "write `x >= 1 and x <= 9`"),
        (r"(?:contains|startswith|endswith|starts_with|ends_with|startsWith|endsWith)\b",
         lambda found: f'it is a function: {_SNAKE.get(found.group().lower(), found.group())}(field, "...")'),
        (r"(?:then|followed\s+by|->|=>)", "steps follow one another without a word between them"),
        (r"[\u2018\u2019\u201c\u201d]", 'use straight double quotes: "US"'),
        (r"(?:within|after|maxspan|runs|overlap|skip|gap|max|for|size|repeat)\s*=",
         lambda found: f"options follow `with`, with a comma between them: `with {found.group().rstrip('= ')}=...`"),
        (r"[\w.\-]+\s+where\b", "a match of single events is `sequence by user with maxspan=1m [type where ...]`"),
        (r"sample\b|join\b", "only `sequence`, `aggregate`, `session` and `window` are known"),
        (r"if\b|select\b|SELECT\b", "a match begins with `sequence`, `aggregate`, `session` or `window`"),
    )
)  # fmt: skip

_READABLE = {
    "PATH": "a field", "WORD": "a name", "BACKTICKED": "", "TYPE": "an event type", "PARAM": "", "DURATION": "",
    "NUMBER": "a value", "STRING": "", "RAW": "", "TRUE": "", "FALSE": "", "NULL": "", "LPAR": "`(`", "RPAR": "`)`",
    "COMMA": "`,`", "OPTIONAL": "", "MINUS": "", "PLUS": "", "STAR": "", "SLASH": "", "PERCENT": "",
    "COMPARE": "a comparison", "COLON": "", "IN": "", "LIKE": "", "REGEX": "", "NOT": "", "TILDE": "",
    "_AND": "`and`", "_OR": "`or`", "_WHERE": "`where`", "_BY": "`by`", "_WITH": "`with`", "_AS": "`as`",
    "_OVER": "`over`", "_EVERY": "`every`", "_UNTIL": "`until`", "_OPEN": "`{`", "_CLOSE": "`}`", "_DOTS": "`..`",
    "_ASSIGN": "`=`", "ABSENT": "", "NEXT": "", "_UNORDERED": "", "BRACKET": "a bracket `[...]`", "$END": "the end",
    "KIND": "`sequence`, `aggregate`, `session` or `window`", "BAD_UNIT": "", "QUOTED": "",
}  # fmt: skip


def expected(accepts: Collection[str]) -> str | None:
    """What could have stood there, in words."""
    words = [_READABLE.get(name, "") for name in _READABLE if name in accepts]
    if "PATH" in accepts and "NUMBER" in accepts:
        words = ["a value", *(word for word in words if word not in ("a field", "a value"))]
    if "COMPARE" in accepts:
        words = [word for word in words if word != "`(`"]
    shown = [word for word in words if word]
    if not shown:
        return None
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def hint(text: str, at: int, accepts: Collection[str]) -> str | None:
    """What to write instead of what stands at an offset, or right before it."""
    before = re.search(r"([^\W\d]\w*)\s*\Z", text[max(0, at - 80) : at])
    word = re.compile(r"[^\W\d]\w*").match(text, at)
    for found in (word, before):
        written = found.group().strip() if found else ""
        if written != written.lower() and written.lower() in KEYWORDS:
            return f"keywords are lower case: `{written.lower()}`"
    for pattern, answer in _HERE:
        found = pattern.match(text, at)
        if found:
            return answer if isinstance(answer, str) else answer(found)
    sign = text[at : at + 1]
    if "_WHERE" in accepts and "PATH" not in accepts and "RPAR" not in accepts:
        return "a bracket is `[type where condition]`; for any event of a type write `where true`"
    if sign == "!" and "PATH" in accepts:
        return "write `not`"
    if re.compile(r"<=?|>=?|==|!=").match(text, at) and "_AND" in accepts:
        return "comparisons are not chained: write `a < b and b < c`"
    if sign == "(" and "_ASSIGN" not in accepts and "COMMA" in accepts and "RPAR" not in accepts:
        return "`by` takes fields; give the expression a name under `let`"
    if word is None:
        return None
    close = nearest(word.group(), re.findall(r"`(\w+)`", " ".join(_READABLE.get(name, "") for name in accepts)))
    if close:
        return f"did you mean `{close}`?"
    is_clause = word.group() in ("by", "as", "with", "where") and "PATH" in accepts
    return f"a field of that name is written in backticks: `` `{word.group()}` ``" if is_clause else None
