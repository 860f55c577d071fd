"""YAML 1.2 (core schema) with positions: a rule file as a tree of maps, lists and scalars.

PyYAML scans; what a plain scalar means is decided here, because PyYAML follows YAML 1.1, in which `NO` is false and
`0742` is octal. Left out on purpose: anchors, aliases, tags and several documents in one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import yaml

from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Fragment, align
from samovar.patterns.syntax.tree import Scalar, Span

MAX_DEPTH = 50

_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_WORDS: dict[str, Scalar] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST_NUMBER = 400

# libyaml's parser where PyYAML was built with it, as its wheels are: forty times as fast.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Text:
    """A scalar. `plain` when it stands without quotes and is no block; `flow` inside `{}` or `[]`."""

    text: str
    plain: bool
    flow: bool
    _file: Fragment
    _start: int
    _end: int
    _style: str | None

    @cached_property
    def span(self) -> Span:
        return _span(self._file, self._start, self._end)

    @cached_property
    def fragment(self) -> Fragment:
        """The text with the place of each of its characters."""
        raw = self._file.text[self._start : self._end]
        last = len(self._file.text)
        offsets = (min(self._start + offset, last) for offset in align(self.text, raw, self._style))
        return Fragment(self.text, self._file.source, [self._file.places[offset] for offset in offsets])

    @property
    def value(self) -> Scalar:
        return core_value(self.text) if self.plain else self.text


@dataclass(frozen=True)
class YamlMap:
    entries: tuple[tuple[Text, Node], ...]
    span: Span


@dataclass(frozen=True)
class List:
    items: tuple[Node, ...]
    span: Span


Node: TypeAlias = "Text | YamlMap | List"


def read(fragment: Fragment, report: Report) -> Node | None:
    """The document in the fragment, or None and a finding. An empty document is None without a finding."""
    bad = _FORBIDDEN.search(fragment.text)
    if bad:
        message = f"the character U+{ord(bad[0]):04X} cannot stand in a YAML file"
        hint = "remove it, or write it as an escape inside double quotes"
        report.error("yaml-character", message, fragment.locate(bad.start(), bad.end()), hint=hint)
        return None
    if fragment.text.startswith("\ufeff"):
        fragment = fragment.part(1, len(fragment.text))
    try:
        parser, composer = _Parser(fragment.text), _Composer(fragment=fragment, report=report)
        while not isinstance(event := parser.get_event(), yaml.StreamEndEvent):
            composer.take(event)
        return composer.root
    except yaml.MarkedYAMLError as fault:
        _report_syntax(fault, fragment, report)
    return None


def core_value(text: str) -> Scalar:
    """What a plain scalar means in YAML 1.2.

    >>> [core_value(text) for text in ("NO", "true", "0742", "0o17", "1e3", "~", "1.2.3")]
    ['NO', True, 742, 15, 1000.0, None, '1.2.3']
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
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
    if isinstance(node, YamlMap):
        return {key.text: plain_data(value) for key, value in node.entries}
    if isinstance(node, List):
        return [plain_data(item) for item in node.items]
    return node.value


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that a rule file does not use."""


@dataclass
class _Open:
    """A map or list whose end has not come yet; a map's children are keys and values in turn."""

    is_map: bool
    start: int
    flow: bool
    children: list[Node] = field(default_factory=list)


@dataclass(kw_only=True)
class _Composer:
    """Builds the tree from PyYAML's events with a stack of its own, so that depth is bounded and nothing recurses."""

    fragment: Fragment
    report: Report
    stack: list[_Open] = field(default_factory=list)
    root: Node | None = None
    documents: int = 0

    def take(self, event: Any) -> None:
        mark, end = event.start_mark, event.end_mark.index
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _Refused(problem="a rule file holds one document", problem_mark=mark)
        elif isinstance(event, yaml.ScalarEvent):
            self._check(event)
            style = event.style or None
            flow = bool(self.stack) and self.stack[-1].flow
            self._add(
                Text(
                    text=event.value,
                    plain=style is None,
                    flow=flow,
                    _file=self.fragment,
                    _start=mark.index,
                    _end=end,
                    _style=style,
                )
            )
        elif isinstance(event, yaml.CollectionStartEvent):
            self._check(event)
            flow = bool(event.flow_style) or any(above.flow for above in self.stack[-1:])
            self.stack.append(_Open(isinstance(event, yaml.MappingStartEvent), mark.index, flow))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self.stack.pop()
            place = _span(self.fragment, done.start, end)
            entries = tuple(self._entries(done.children)) if done.is_map else ()
            self._add(YamlMap(entries, place) if done.is_map else List(tuple(done.children), place))
        elif isinstance(event, yaml.AliasEvent):
            self._check(event)

    def _check(self, event: Any) -> None:
        problem = None
        if isinstance(event, yaml.AliasEvent) or event.anchor:
            problem = "anchors and aliases are not used in rule files"
        elif event.tag:
            problem = "tags are not used in rule files"
        elif len(self.stack) >= MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
        if problem:
            raise _Refused(problem=problem, problem_mark=event.start_mark)

    def _add(self, node: Node) -> None:
        if self.stack:
            self.stack[-1].children.append(node)
        else:
            self.root = node

    def _entries(self, children: list[Node]) -> Iterator[tuple[Text, Node]]:
        seen: dict[str, Text] = {}
        for key, value in zip(children[::2], children[1::2], strict=True):
            if not isinstance(key, Text):
                self.report.error("yaml-key", "a key must be a plain word", key.span)
            elif key.text in seen:
                hint = f"the first is on line {seen[key.text].span.line}: keep one of them"
                self.report.error("duplicate-key", f"`{key.text}` stands twice", key.span, hint=hint)
            else:
                seen[key.text] = key
                yield key, value


def _span(fragment: Fragment, start: int, end: int) -> Span:
    """Without the white space after a node, which the parser may count to it."""
    return fragment.locate(start, start + len(fragment.text[start:end].rstrip()))


def _report_syntax(fault: yaml.MarkedYAMLError, fragment: Fragment, report: Report) -> None:
    mark = fault.problem_mark or fault.context_mark
    # A quote or bracket that is never closed shows only lines below: the fault is where it was opened.
    opened = fault.context_mark if any(word in str(fault.context) for word in ("quoted", "flow")) else None
    if mark and opened and opened.line < mark.line:
        mark = opened
    at = min(mark.index if mark else 0, len(fragment.text))
    problem = fault.problem or "it cannot be read"
    where = fragment.locate(at, at + 1)
    if isinstance(fault, _Refused):
        hint = "write the value out" if "anchor" in problem else "one file for each rule" if "one" in problem else None
        report.error("yaml-refused", problem, where, hint=hint)
        return
    hint = "a value that begins with or holds { } [ ] , : or # needs quotes"
    if "mapping values are not allowed" in problem:
        hint = "a value that holds `: ` needs quotes, or a block: `match: |` and the text on the next lines"
    elif fragment.text[at : at + 1] == "\t":
        hint = "indent with spaces"
    elif "cannot start any token" in problem:
        hint = "put the value in double quotes"
    elif "escape" in problem:
        hint = "in double quotes YAML reads `\\`: write `\\\\`, or use single quotes or a block"
    report.error("yaml-syntax", f"not YAML: {problem}", where, hint=hint)
