"""Lint of what a rule file declares and never reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samovar.patterns.lint_table import Notes
from samovar.patterns.yamltext import List, Map, Node, Text

_WORD = re.compile(r"\$?[^\W\d][\w-]*")
_READING = ("match", "emit", "message", "suppress", "let")


def check_unused(notes: Notes) -> None:
    sections = {name: node for name, (_, node) in notes.sections().items()}
    texts = [(name, text) for name in _READING for text in _texts(sections.get(name))]
    dollars = {word.group()[1:] for _, text in texts for word in _WORD.finditer(text.text) if word.group()[0] == "$"}
    for section, id in (("params", "unused-param"), ("lists", "unused-list")):
        for key, _ in _entries(sections.get(section)):
            if key.text not in dollars:
                notes.add(id, f"nothing reads `${key.text}`", key.span, "leave it out, or is the name misspelt?")
    for key, own in _entries(sections.get("let")):
        word = re.compile(rf"(?<![\w$]){re.escape(key.text)}(?!\w)")
        if not any(word.search(text.text) for _, text in texts if text is not own):
            notes.add("unused-let", f"nothing reads `{key.text}`", key.span, "leave it out, or is the name misspelt?")


def _entries(node: Node | None) -> list[tuple[Text, Node]]:
    return list(node.entries) if isinstance(node, Map) else []


def _texts(node: Node | None) -> Iterator[Text]:
    if isinstance(node, Text):
        yield node
    elif isinstance(node, Map):
        for _, value in node.entries:
            yield from _texts(value)
    elif isinstance(node, List):
        for item in node.items:
            yield from _texts(item)
