"""YAML 1.2 (core schema) with positions: a rule file as a tree of maps, lists and scalars.

PyYAML scans; what a plain scalar means is decided here, because PyYAML follows YAML 1.1, in which `NO` is false and
`0742` is octal. Left out on purpose: anchors, aliases, tags and several documents in one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from samovar.patterns.findings import Report
from samovar.patterns.source import Fragment, Source
from samovar.patterns.syntax import Scalar, Span

MAX_DEPTH = 50

_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.S)


@dataclass(frozen=True)
class Text:
    """A scalar. `plain` when it stands without quotes and is no block; `flow` inside `{}` or `[]`."""

    fragment: Fragment
    plain: bool
    flow: bool
    span: Span

    @property
    def text(self) -> str:
        return self.fragment.text

    @property
    def value(self) -> Scalar:
        return core_value(self.text) if self.plain else self.text


@dataclass(frozen=True)
class Map:
    entries: tuple[tuple[Text, Node], ...]
    span: Span


@dataclass(frozen=True)
class List:
    items: tuple[Node, ...]
    span: Span


Node: TypeAlias = "Text | Map | List"


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that a rule file does not use."""


class _Loader(yaml.SafeLoader):
    """PyYAML's scanner and composer, with a bound on depth: both are recursive or quadratic in it."""

    depth = 0

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise _Refused(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused(problem="anchors and aliases are not used in rule files", problem_mark=event.start_mark)
        if getattr(event, "tag", None):
            raise _Refused(problem="tags are not used in rule files", problem_mark=event.start_mark)
        if self.depth >= MAX_DEPTH:
            raise _Refused(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def read(fragment: Fragment, report: Report) -> Node | None:
    """The document in the fragment, or None and a finding. An empty document is None without a finding."""
    try:
        loader = _Loader(fragment.text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as fault:
        where = fragment.locate(fault.position, fault.position + 1)
        report.error(
            "yaml-character",
            f"character U+{_code(fault.character):04X} cannot stand in a YAML file",
            where,
            hint="remove it, or write it as an escape inside double quotes",
        )
        return None
    except yaml.MarkedYAMLError as fault:
        _report_syntax(fault, fragment, report)
        return None
    return None if node is None else _Converter(fragment, report).convert(node, False)


def core_value(text: str) -> Scalar:
    """What a plain scalar means in YAML 1.2.

    >>> [core_value(text) for text in ("NO", "true", "0742", "0o17", "1e3", "~", "1.2.3")]
    ['NO', True, 742, 15, 1000.0, None, '1.2.3']
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 400:
        return text
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text[2:], 8)
    if _HEX.match(text):
        return int(text[2:], 16)
    if _FLOAT.match(text):
        return float(text)
    if _INFINITE.match(text):
        return float(text.replace(".", ""))
    return text


def plain_data(node: Node) -> Any:
    """The node as Python data."""
    if isinstance(node, Map):
        return {key.text: plain_data(value) for key, value in node.entries}
    if isinstance(node, List):
        return [plain_data(item) for item in node.items]
    return node.value


def _code(character: Any) -> int:
    return ord(character) if isinstance(character, str) else int(character)


def _report_syntax(fault: yaml.MarkedYAMLError, fragment: Fragment, report: Report) -> None:
    mark = fault.problem_mark or fault.context_mark
    at = min(mark.index if mark else 0, len(fragment.text))
    problem = fault.problem or "not YAML"
    if isinstance(fault, _Refused):
        hint = "write the value out" if "anchor" in problem else None
        report.error("yaml-refused", problem, fragment.locate(at, at + 1), hint=hint)
        return
    if fault.context and "expected a single document" in fault.context:
        problem = "a rule file holds one document"
    report.error("yaml-syntax", f"not YAML: {problem}", fragment.locate(at, at + 1), hint=_syntax_hint(problem))


def _syntax_hint(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "a value that holds `: ` needs quotes, or a block: `match: |` and the text on the next lines"
    if "'\\t'" in problem or "tab" in problem:
        return "indent with spaces"
    if "cannot start any token" in problem:
        return "put the value in double quotes"
    if "unknown escape" in problem:
        return "in double quotes YAML reads `\\`: write `\\\\`, or use single quotes or a block"
    return "a value that begins with or holds { } [ ] , : or # needs quotes"


@dataclass(frozen=True)
class _Converter:
    fragment: Fragment
    report: Report

    def convert(self, node: yaml.Node, flow: bool) -> Node:
        span = self.fragment.locate(node.start_mark.index, self._end(node))
        if isinstance(node, yaml.MappingNode):
            return Map(tuple(self._entries(node, flow or bool(node.flow_style))), span)
        if isinstance(node, yaml.SequenceNode):
            inside = flow or bool(node.flow_style)
            return List(tuple(self.convert(item, inside) for item in node.value), span)
        return self._text(node, flow, span)

    def _end(self, node: yaml.Node) -> int:
        """Where the node's text ends; PyYAML's own mark may lie behind the white space after it."""
        start, end = node.start_mark.index, node.end_mark.index
        return start + len(self.fragment.text[start:end].rstrip())

    def _entries(self, node: yaml.MappingNode, flow: bool) -> Iterator[tuple[Text, Node]]:
        seen: dict[str, Text] = {}
        for raw_key, raw_value in node.value:
            key = self.convert(raw_key, flow)
            value = self.convert(raw_value, flow)
            if not isinstance(key, Text):
                self.report.error("yaml-key", "a key must be a plain word", key.span)
            elif key.text in seen:
                self.report.error(
                    "duplicate-key",
                    f"`{key.text}` stands twice",
                    key.span,
                    hint=f"the first is on line {seen[key.text].span.line}: keep one of them",
                )
            else:
                seen[key.text] = key
                yield key, value

    def _text(self, node: yaml.Node, flow: bool, span: Span) -> Text:
        start, end = node.start_mark.index, node.end_mark.index
        style = getattr(node, "style", None)
        raw = self.fragment.text[start:end]
        offsets = _align_quoted(node.value, raw, style) if style in ('"', "'") else _align(node.value, raw, style)
        places = [self.fragment.places[min(start + offset, len(self.fragment.text))] for offset in offsets]
        source: Source = self.fragment.source
        return Text(Fragment(node.value, source, places), style is None, flow, span)


def _align(value: str, raw: str, style: str | None) -> list[int]:
    """For each character of a plain or block scalar its offset in the raw text: only white space differs."""
    at = raw.find("\n") + 1 if style in ("|", ">") else 0
    indent = _indent(value, raw[at:]) if style in ("|", ">") else 0
    at += indent
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


def _indent(value: str, body: str) -> int:
    """How many columns YAML took off each line of a block: seen at its first line that is not blank."""
    for line in body.split("\n"):
        if line.strip():
            first = next((text for text in value.split("\n") if text.strip()), "")
            return (len(line) - len(line.lstrip(" "))) - (len(first) - len(first.lstrip(" ")))
    return 0


def _after_indent(raw: str, start: int, indent: int) -> int:
    """The start of a line's text; a blank line may be shorter than the indentation."""
    end = start
    while end < len(raw) and end - start < indent and raw[end] == " ":
        end += 1
    return end


def _align_quoted(value: str, raw: str, style: str) -> list[int]:
    """For each character of a quoted scalar its offset in the raw text, which begins with the quote."""
    at, offsets = 1, []
    for char in value:
        width = 1
        if style == "'":
            width = 2 if raw.startswith("''", at) else 1
        else:
            at = _skip_joined(raw, at)
            escape = _ESCAPE.match(raw, at)
            width = escape.end() - at if escape else 1
        if width == 1:
            while at < len(raw) and raw[at] != char and raw[at].isspace():
                at += 1
        offsets.append(min(at, len(raw)))
        at += width
    return [*offsets, min(at, len(raw))]


def _skip_joined(raw: str, at: int) -> int:
    """Past a backslash at a line's end, which joins two lines."""
    joined = re.compile(r"\\\r?\n[ \t]*").match(raw, at)
    return joined.end() if joined else at
