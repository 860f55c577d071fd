"""A rule's version: a hash of all that affects its matches and their records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from samovar.patterns.syntax import Literal, Rule

# Part of the hash: raised when the same rule text comes to mean something else.
MEANING = 1


def version_of(rule: Rule) -> str:
    """16 hex digits over the resolved form, `emit` and `suppress`, in which parameters, lists and lets are written out.

    White space, comments, the title, severity, tags, message and tests do not count.
    """
    content = [MEANING, _plain(rule.form), _plain(rule.emit), rule.suppress_ms]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _plain(node: Any) -> Any:
    """Data for JSON: a dataclass as its class and fields, without positions."""
    if type(node) is Literal:  # as below, and quicker: a list may have very many
        return ["Literal", _plain(node.value)]
    if isinstance(node, Enum):
        return node.value
    if isinstance(node, str):
        return node
    if is_dataclass(node):
        names = [item.name for item in fields(node) if item.compare]
        return [type(node).__name__, *(_plain(getattr(node, name)) for name in names)]
    if isinstance(node, tuple):
        return [_plain(item) for item in node]
    # 1 and 1.0 compare alike everywhere in the language, true and 1 do not.
    if isinstance(node, float) and node.is_integer() and abs(node) < 2**53:
        return int(node)
    return node
