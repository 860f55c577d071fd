"""What a check has to say of a rule file: findings, how they are gathered, and how they are shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from samovar.patterns.syntax.tree import Span

Level: TypeAlias = Literal["error", "warning", "info"]

# A file full of faults is told so after this many; the rest would only scroll the first ones away.
MAX_FINDINGS = 100

# A longer line is shown only around its caret.
SHOWN_WIDTH = 160


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to tell: what (`id` is stable), where, what was expected, and what to do next."""

    id: str
    level: Level
    message: str
    path: str
    span: Span
    expected: str | None = None
    hint: str | None = None


@dataclass
class Report:
    """Gathers the findings of one file: each once, at most MAX_FINDINGS."""

    path: str
    _found: dict[Finding, None] = field(default_factory=dict)

    def error(self, id: str, message: str, span: Span, *, expected: str | None = None, hint: str | None = None) -> None:
        self.add(
            Finding(id=id, level="error", message=message, path=self.path, span=span, expected=expected, hint=hint)
        )

    def warning(
        self, id: str, message: str, span: Span, *, expected: str | None = None, hint: str | None = None
    ) -> None:
        self.add(
            Finding(id=id, level="warning", message=message, path=self.path, span=span, expected=expected, hint=hint)
        )

    def add(self, finding: Finding) -> None:
        if len(self._found) < MAX_FINDINGS:
            self._found.setdefault(finding)
        elif len(self._found) == MAX_FINDINGS:
            text = f"more than {MAX_FINDINGS} findings; the rest is left out"
            self._found.setdefault(
                Finding(id="too-many-findings", level="error", message=text, path=self.path, span=finding.span)
            )

    @property
    def full(self) -> bool:
        """Whether further findings would be left out."""
        return len(self._found) > MAX_FINDINGS

    @property
    def failed(self) -> bool:
        return has_errors(self._found)

    def findings(self) -> tuple[Finding, ...]:
        """In the order of the file."""
        return tuple(sorted(self._found, key=lambda finding: (finding.span, finding.id)))


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def render(finding: Finding, text: str) -> str:
    """`file:line:column: level: message [id]`, the line with a caret under it, what was expected, and the hint."""
    span = finding.span
    parts = [f"{finding.path}:{span.line}:{span.column}: {finding.level}: {visible(finding.message)} [{finding.id}]"]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if 1 <= span.line <= len(lines):
        parts.extend(_underline(lines[span.line - 1], span))
    if finding.expected:
        parts.append(f"  expected: {visible(finding.expected)}")
    if finding.hint:
        parts.append(f"  hint: {visible(finding.hint)}")
    return "\n".join(parts)


def to_json(finding: Finding) -> dict[str, object]:
    fields = asdict(finding)
    span = fields.pop("span")
    expected, hint = fields.pop("expected"), fields.pop("hint")
    return {**fields, **span, "expected": expected, "hint": hint}


def visible(text: str) -> str:
    """The text with control, invisible and direction-changing characters written as escapes."""
    return "".join(_printable(char) for char in text)


def _underline(line: str, span: Span) -> list[str]:
    first = min(span.column - 1, len(line))
    last = min(span.end_column - 1, len(line)) if span.end_line == span.line else len(line)
    cut = max(0, first - SHOWN_WIDTH // 2)
    before, after = line[cut:first], line[max(last, first) : cut + SHOWN_WIDTH]
    marked = line[first : max(first, min(last, cut + SHOWN_WIDTH))]
    lead, trail = "..." if cut else "", "..." if len(line) > cut + SHOWN_WIDTH else ""
    margin = f"{span.line:>5} | "
    shown = lead + "".join(_printable(char) for char in before + marked + after) + trail
    pad = " " * len(lead) + "".join("\t" if char == "\t" else " " * _width(char) for char in before)
    carets = "^" * max(1, sum(_width(char) for char in marked.rstrip()))
    return [margin + shown, " " * (len(margin) - 2) + "| " + pad + carets]


def _printable(char: str) -> str:
    if char == "\t" or char.isprintable() or unicodedata.combining(char):
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _width(char: str) -> int:
    """Columns a terminal gives to a character: none to a combining mark, two to a wide one."""
    if char == "\t":
        return 1
    if unicodedata.combining(char):
        return 0
    shown = _printable(char)
    if shown != char:
        return len(shown)
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
