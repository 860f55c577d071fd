"""The section `tests` of a rule file: events as `+5s TYPE {field: value}`, and what is expected of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from samovar.common.suggest import did_you_mean
from samovar.common.times import unit_hint
from samovar.patterns.rulefile.params import warn_numbers
from samovar.patterns.semantics.check import ResolvedMatch
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.constants import duration_ms
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.tree import step_names
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap, plain_data, read

MAX_EVENTS = 10_000

_EVENT = re.compile(r"\s*(?P<at>\+\S+)\s+(?P<type>[^\s{]+)\s*(?P<fields>\{.*)?\s*\Z", re.S)
_EXPECT_KEYS = ("key", "at", "start", "end", "steps", "emit", "message")
_TEST_KEYS = ("name", "events", "expect")
_EXAMPLE = '"+5s purchase {card: c1, amount: 1}"'


def read_tests(
    node: Node | None, report: Report, checked: ResolvedMatch | None, emitted: Sequence[str]
) -> tuple[tree.RuleTest, ...]:
    if node is None or (isinstance(node, Text) and node.value is None):
        return ()
    if not isinstance(node, List):
        report.error("bad-tests", "`tests` must be a list", node.span, expected="- name: ..., events: ..., expect: ...")
        return ()
    reader = _Reader(report, checked, frozenset(emitted))
    return tuple(reader.test(item, number) for number, item in enumerate(node.items, 1))


@dataclass(frozen=True)
class _Reader:
    report: Report
    checked: ResolvedMatch | None
    emitted: frozenset[str]

    def test(self, node: Node, number: int) -> tree.RuleTest:
        sections = self._sections(node, _TEST_KEYS, "a test")
        name = sections.get("name")
        for key in ("events", "expect"):
            if key not in sections and isinstance(node, YamlMap):
                example = "expect: [] for no match" if key == "expect" else f"events: [{_EXAMPLE}]"
                self.report.error(f"missing-{key}", f"the test has no `{key}`", node.span, expected=example)
        events = tuple(event for item in self._items(sections.get("events")) if (event := self._event(item)))
        expect = tuple(self._expected(item, len(events)) for item in self._items(sections.get("expect")))
        title = name.text if isinstance(name, Text) and name.text else f"test {number}"
        return tree.RuleTest(title, events, expect, node.span)

    def _sections(self, node: Node, known: Sequence[str], what: str) -> dict[str, Node]:
        if not isinstance(node, YamlMap):
            self.report.error("bad-tests", f"{what} must be a map", node.span, expected=", ".join(known))
            return {}
        for key, _ in node.entries:
            if key.text not in known:
                message = f"{what} has no `{key.text}`"
                hint = did_you_mean(key.text, known)
                self.report.error("unknown-key", message, key.span, expected=", ".join(known), hint=hint)
        return {key.text: value for key, value in node.entries if key.text in known}

    def _items(self, node: Node | None) -> tuple[Node, ...]:
        if node is None or (isinstance(node, Text) and node.value is None):
            return ()
        if not isinstance(node, List):
            self.report.error("bad-tests", "this must be a list", node.span)
            return ()
        if len(node.items) > MAX_EVENTS:
            self.report.error("too-long", f"more than {MAX_EVENTS:,} events in one test", node.span)
        return node.items[:MAX_EVENTS]

    def _event(self, node: Node) -> tree.TestEvent | None:
        if not isinstance(node, Text):
            hint = "put the whole event in double quotes"
            self.report.error("bad-event", "an event is one text", node.span, expected=_EXAMPLE, hint=hint)
            return None
        found = _EVENT.match(node.text)
        if not found:
            self.report.error(
                "bad-event",
                "this is not an event",
                node.span,
                expected=_EXAMPLE,
                hint=None if node.text.lstrip().startswith("+") else "an event begins with its time: +5s",
            )
            return None
        offset = self._offset(found["at"], node.fragment.locate(found.start("at"), found.end("at")))
        fields = self._fields(node, found.start("fields"), found.end("fields")) if found["fields"] else {}
        return tree.TestEvent(offset or 0, found["type"], fields, node.span)

    def _offset(self, text: str, span: tree.Span) -> int | None:
        ms = duration_ms(text[1:]) if text.startswith("+") else None
        if ms is None:
            has_unit = re.match(r"\+\d+[a-z]", text)
            tip = unit_hint(text.lstrip("+")) if has_unit else "it counts from the test's begin: +90s"
            self.report.error("bad-time", f"`{text[:50]}` is not a time of a test", span, expected="+5s", hint=tip)
        return ms

    def _fields(self, node: Text, start: int, end: int) -> dict[str, Any]:
        found = read(node.fragment.part(start, end), self.report)
        if isinstance(found, YamlMap):
            warn_numbers(found, self.report)
            data = plain_data(found)
            assert isinstance(data, dict)
            return data
        if not self.report.failed:
            self.report.error("bad-event", "the fields must be a map", node.span, expected="{card: c1, amount: 1}")
        return {}

    def _expected(self, node: Node, events: int) -> tree.ExpectedMatch:
        sections = self._sections(node, _EXPECT_KEYS, "an expected match")
        times: dict[str, int | None] = {}
        for name in ("at", "start", "end"):
            time = sections.get(name)
            text = time.text if isinstance(time, Text) else "?"
            times[name] = None if time is None else self._offset(text, time.span)
        form = self.checked.form if self.checked else None
        key = self._map(sections.get("key"), "key", None if form is None else [each.name for each in form.by])
        always = {"count"} if isinstance(form, tree.SessionForm) else set()
        steps = self._map(sections.get("steps"), "steps", None if form is None else step_names(form))
        emit = self._map(sections.get("emit"), "emit", sorted(self.emitted | always))
        message = sections.get("message")
        return tree.ExpectedMatch(
            key=None if key is None else {name: plain_data(value) for name, value in key.items()},
            at_ms=times["at"],
            start_ms=times["start"],
            end_ms=times["end"],
            steps=None if steps is None else {name: self._indexes(value, events) for name, value in steps.items()},
            emit=None if emit is None else {name: plain_data(value) for name, value in emit.items()},
            message=message.text if isinstance(message, Text) else None,
            span=node.span,
        )

    def _map(self, node: Node | None, what: str, known: Sequence[str] | None) -> dict[str, Node] | None:
        if node is None:
            return None
        if not isinstance(node, YamlMap):
            self.report.error("bad-tests", f"`{what}` must be a map", node.span)
            return None
        for key, _ in node.entries:
            if known is not None and key.text not in known:
                message = f"no match has `{key.text}` in its {what}"
                hint = did_you_mean(key.text, known)
                self.report.error("unknown-name", message, key.span, expected=", ".join(known) or "none", hint=hint)
        return {key.text: value for key, value in node.entries}

    def _indexes(self, node: Node, events: int) -> tuple[int, ...]:
        data = plain_data(node)
        indexes = data if isinstance(data, list) else [data]
        for index in indexes:
            if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < max(events, 1):
                expected = f"0 to {max(events, 1) - 1}, counting the events as written"
                self.report.error("bad-tests", f"`{index}` is not an event of this test", node.span, expected=expected)
                return ()
        return tuple(indexes)
