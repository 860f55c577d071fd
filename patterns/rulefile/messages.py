"""Message templates: text with `{expression}` inside; `{{` and `}}` are braces."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Fragment

_PIECE = re.compile(r"(?:[^{}]|\{\{|\}\})++|[{}]")
# Strings inside an expression may hold braces.
_EXPRESSION = re.compile(r'(?:"""[^"]*+(?:"(?!"")[^"]*+)*+"""|"(?:[^"\\\n]|\\.)*+"|`[^`\n]*+`|[^"`{}])*+')


def split_message(fragment: Fragment, report: Report) -> Iterator[str | Fragment]:
    """The parts of a template: text, and the fragments of expressions."""
    at, text = 0, fragment.text
    while at < len(text):
        piece = _PIECE.match(text, at)
        assert piece is not None
        found, at = piece.group(), piece.end()
        if found == "}":
            hint = "a brace is written `}}`"
            report.error("unbalanced", "`}` closes nothing", fragment.locate(at - 1, at), hint=hint)
        elif found != "{":
            yield found.replace("{{", "{").replace("}}", "}")
        else:
            inside = _EXPRESSION.match(text, at)
            end = inside.end() if inside else at
            if text[end : end + 1] != "}":
                hint = "a brace is written `{{`"
                report.error("unclosed", "`{` is never closed", fragment.locate(at - 1, at), expected="`}`", hint=hint)
                return
            yield fragment.part(at, end)
            at = end + 1
