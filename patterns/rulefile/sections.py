"""The sections of a rule file, each read on its own: an error in one hides none in another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from samovar.common.suggest import did_you_mean, nearest
from samovar.common.times import unit_hint
from samovar.patterns.parse.parser import read_expression, read_match
from samovar.patterns.rulefile.params import read_lists, read_params, warn_numbers
from samovar.patterns.rulefile.tests_section import read_tests
from samovar.patterns.semantics.check import ResolvedMatch, check_match
from samovar.patterns.semantics.resolve import resolve_guarded
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.scope import CheckerContext, ExpressionContext
from samovar.patterns.syntax.constants import Constants, duration_ms
from samovar.patterns.syntax.findings import Report
from samovar.patterns.syntax.positions import Fragment
from samovar.patterns.syntax.tree import Expr, Literal, Name, Rule, Scalar, Span
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap

MAX_ENTRIES = 500  # of `emit` or `let`, and parts of a message

KEYS = ("rule", "title", "severity", "tags", "match", "emit", "message", "suppress", "let", "params", "lists", "tests")
SEVERITIES = ("info", "low", "medium", "high", "critical")
DEFAULT_SEVERITY = "medium"

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,99}\Z")
_NAME = re.compile(r"[^\W\d]\w*\Z")
_HABITS = {
    "id": "rule",
    "name": "rule",
    "description": "title",
    "level": "severity",
    "priority": "severity",
    "query": "match",
    "detection": "match",
    "condition": "match",
    "pattern": "match",
    "labels": "tags",
    "define": "let",
    "parameters": "params",
    "throttle": "suppress",
    "test": "tests",
}
# Messages: text with `{expression}` inside; `{{` and `}}` are braces.
_PIECE = re.compile(r"(?:[^{}]|\{\{|\}\})++|[{}]")
# Strings inside an expression may hold braces.
_EXPRESSION = re.compile(r'(?:"""[^"]*+(?:"(?!"")[^"]*+)*+"""|"(?:[^"\\\n]|\\.)*+"|`[^`\n]*+`|[^"`{}])*+')
_START = Span(1, 1, 1, 1)


class RuleReader:
    """Reads the tree of one rule file, section by section."""

    def __init__(
        self,
        node: YamlMap,
        report: Report,
        schema: Schema | None,
        known_fields: frozenset[str] | None,
        params: Mapping[str, Any],
        lists: Mapping[str, Any],
    ) -> None:
        self.node, self.report = node, report
        self.sections: dict[str, Node] = {key.text: value for key, value in node.entries}
        values, durations = read_params(self.sections.get("params"), params, report)
        self.constants = Constants(values, read_lists(self.sections.get("lists"), lists, report), durations)
        for name in self.constants.params.keys() & self.constants.lists.keys():
            report.error("duplicate-name", f"`{name}` is a parameter and a list", self.sections["lists"].span)
        for name in ("params", "lists", "emit", "tests"):
            if name in self.sections:
                warn_numbers(self.sections[name], report)
        self.context = CheckerContext(report=report, schema=schema, known_fields=known_fields, lets={})

    def read(self, path: str, text: str) -> Rule | None:
        self._check_keys()
        identity, title, severity, tags = self._identity(), self._plain("title"), self._severity(), self._tags()
        self._read_lets()
        match = self.sections.get("match")
        checked = self._match(match)
        emit, message = self._emit(checked), self._message(checked)
        suppress_ms = self._suppress()
        tests = read_tests(self.sections.get("tests"), self.report, checked, [name for name, _ in emit])
        if checked is None or self.report.failed:
            return None
        lets = {name: resolve_guarded(raw, _let_place(name), self.context) for name, raw in self.context.lets.items()}
        return Rule(
            id=identity,
            title=title or identity,
            severity=severity,
            tags=tags,
            form=checked.form,
            emit=emit,
            message=message,
            suppress_ms=suppress_ms,
            params=self.constants.params,
            lists=self.constants.lists,
            tests=tests,
            path=path,
            text=text,
            match_text=match.text if isinstance(match, Text) else "",
            lets=lets,
        )

    def _check_keys(self) -> None:
        for key, _ in self.node.entries:
            if key.text not in KEYS and not self.report.full:
                habit = _HABITS.get(key.text)
                tip = f"did you mean `{habit}`?" if habit else did_you_mean(key.text, KEYS)
                message = f"a rule file has no `{key.text}`"
                self.report.error("unknown-key", message, key.span, expected=", ".join(KEYS), hint=tip)
        meant = [
            nearest(key.text, KEYS) or _HABITS.get(key.text) for key, _ in self.node.entries if key.text not in KEYS
        ]
        for key_name in ("rule", "match"):
            if key_name not in self.sections and key_name not in meant:
                example = "rule: my-rule" if key_name == "rule" else "match: |"
                self.report.error(f"missing-{key_name}", f"the rule has no `{key_name}`", _START, expected=example)

    def _plain(self, name: str) -> str | None:
        node = self.sections.get(name)
        if node is None:
            return None
        if not isinstance(node, Text):
            self.report.error("not-text", f"`{name}` must be text", node.span, hint="put it in double quotes")
            return None
        return node.text

    def _identity(self) -> str:
        identity, node = self._plain("rule"), self.sections.get("rule")
        if identity is not None and node is not None and not _ID.match(identity):
            better = re.sub(r"[^a-z0-9]+", "-", identity.lower()[:100]).strip("-")
            message = f"`{identity[:100]}` is not a rule id"
            expected = "lower case, digits and dashes"
            hint = f"write `{better}`" if better else None
            self.report.error("bad-id", message, node.span, expected=expected, hint=hint)
        return identity or ""

    def _severity(self) -> str:
        severity, node = self._plain("severity"), self.sections.get("severity")
        if severity is None or node is None:
            return DEFAULT_SEVERITY
        if severity not in SEVERITIES:
            tip = {"warning": "medium", "error": "high", "informational": "info"}.get(severity.lower())
            message = f"there is no severity `{severity[:100]}`"
            hint = f"write `{tip}`" if tip else did_you_mean(severity, SEVERITIES)
            self.report.error("unknown-severity", message, node.span, expected=", ".join(SEVERITIES), hint=hint)
        return severity

    def _tags(self) -> tuple[str, ...]:
        node = self.sections.get("tags")
        if node is None or isinstance(node, Text):
            return (node.text,) if node is not None and node.text else ()
        if isinstance(node, List) and all(isinstance(item, Text) for item in node.items):
            return tuple(item.text for item in node.items if isinstance(item, Text))
        self.report.error("bad-tags", "`tags` must be a list of words", node.span, expected="[fraud, cards]")
        return ()

    def _suppress(self) -> int | None:
        node = self.sections.get("suppress")
        if node is None or (isinstance(node, Text) and node.value is None):
            return None
        text = node.text.strip() if isinstance(node, Text) else ""
        value: Scalar = self.constants.params.get(text[1:]) if text.startswith("$") else text
        is_time = text.startswith("$") and text[1:] in self.constants.durations and isinstance(value, int)
        ms = int(value or 0) if is_time else duration_ms(value) if isinstance(value, str) else None
        if ms:
            return ms
        tip = unit_hint(text) if text[:1].isdigit() else None
        if text.isdigit() and int(text[:15]) > 0:
            tip = f"give it a unit: `{text}s`"
        id = "zero-duration" if ms == 0 else "no-duration"
        self.report.error(id, "`suppress` takes a time", node.span, expected="a time such as 1h", hint=tip)
        return None

    def _expression(self, node: Node, what: str) -> Expr | None:
        """The raw expression in a YAML value; a number or boolean is itself."""
        if not isinstance(node, Text):
            self.report.error("not-text", f"{what} must be an expression", node.span, hint="put it in double quotes")
            return None
        if node.plain and not isinstance(node.value, str):
            return Literal(node.value, node.span)
        own = Report(self.report.path)
        tree = read_expression(node.text, node.fragment.locate, own, self.constants)
        for finding in own.findings():
            if finding.id == "unclosed" and node.flow and node.plain:
                finding = replace(finding, hint="inside { } a comma ends the value: put the expression in quotes")
            self.report.add(finding)
        return tree

    def _read_lets(self) -> None:
        lets: dict[str, Expr] = {}
        for key, value in self._entries("let"):
            if not _NAME.match(key.text):
                message = f"`{key.text[:100]}` cannot be the name of a `let`"
                self.report.error("bad-name", message, key.span, expected="letters, digits and _")
                continue
            tree = self._expression(value, "a `let`")
            lets[key.text] = tree if tree is not None else _unknown(key.text, value.span)
        self.context.lets = lets
        for name, raw in lets.items():
            # Each by itself; its fields are checked where it is used, for the types there.
            context = replace(self.context, schema=None, report=Report(self.report.path))
            resolve_guarded(raw, _let_place(name), context)
            self.context.nodes += context.nodes
            for finding in context.report.findings():
                self.report.add(finding)
            if context.report.failed:
                lets[name] = _unknown(name, raw.span)

    def _entries(self, name: str) -> list[tuple[Text, Node]]:
        node = self.sections.get(name)
        if node is None or (isinstance(node, Text) and node.value is None):
            return []
        if isinstance(node, YamlMap) and len(node.entries) > MAX_ENTRIES:
            self.report.error("too-long", f"`{name}` has more than {MAX_ENTRIES} entries", node.span)
        if isinstance(node, YamlMap):
            return list(node.entries)[:MAX_ENTRIES]
        self.report.error("not-a-map", f"`{name}` maps names to expressions", node.span, expected=f"{name}: {{n: ...}}")
        return []

    def _match(self, node: Node | None) -> ResolvedMatch | None:
        if node is None:
            return None
        if not isinstance(node, Text):
            self.report.error("not-text", "`match` must be text", node.span, expected="match: | and the text below it")
            return None
        tree = read_match(node.text, node.fragment.locate, self.report, self.constants)
        return None if tree is None else check_match(tree, self.context)

    def _resolved(self, raw: Expr | None, checked: ResolvedMatch | None) -> Expr:
        if raw is None or checked is None:
            return Literal(None)
        return resolve_guarded(raw, checked.result, self.context)

    def _emit(self, checked: ResolvedMatch | None) -> tuple[tuple[str, Expr], ...]:
        entries = self._entries("emit")
        return tuple((key.text, self._resolved(self._expression(value, "`emit`"), checked)) for key, value in entries)

    def _message(self, checked: ResolvedMatch | None) -> tuple[str | Expr, ...]:
        node = self.sections.get("message")
        if node is None:
            return ()
        if not isinstance(node, Text):
            tip = 'a message that begins with `{` needs quotes: "{count(probe)} ..."'
            self.report.error("not-text", "`message` must be text", node.span, hint=tip)
            return ()
        parts: list[str | Expr] = []
        for part in islice(_split_message(node.fragment, self.report), MAX_ENTRIES + 1):
            if len(parts) == MAX_ENTRIES:
                self.report.error("too-long", f"the message has more than {MAX_ENTRIES} parts", node.span)
                break
            last = parts[-1] if parts else None
            if isinstance(part, str) and isinstance(last, str):
                parts[-1] = last + part
            elif isinstance(part, str):
                parts.append(part)
            else:
                raw = read_expression(part.text, part.locate, self.report, self.constants)
                parts.append(self._resolved(raw, checked))
        return tuple(parts)


def _unknown(name: str, span: Span) -> Expr:
    """What stands for a faulty let, so that its uses are no further errors: an optional field that no let is named."""
    return Name(f"?{name}?", span)


def _let_place(name: str) -> ExpressionContext:
    return ExpressionContext(types=("any",), what="a `let`", history=True, lets=(name,))


def _split_message(fragment: Fragment, report: Report) -> Iterator[str | Fragment]:
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
