"""Values that are marked `pii` in a stream, hidden from those who may not see them.

A hidden value becomes a pseudonym, `pii:` and 16 digits: the same value has the same one everywhere, so that events of
one card can still be seen to be of one card, and nobody can compute the value from it (it is keyed by a secret).
What cannot be told apart (a message that quotes such a value, a dead letter that is no JSON) is hidden whole.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from samovar.patterns.syntax import Expr, Field, Rule, walk
from samovar.service.settings_models import ServiceFile

PREFIX = "pii:"
HIDDEN = "(hidden: it may hold values that are marked pii)"
DIGITS = 16
_ALIAS = re.compile(PREFIX + "[0-9a-f]{16}")


class Masks:
    """What one who asks may see. `secret` None: all of it."""

    def __init__(self, settings: ServiceFile, secret: bytes | None) -> None:
        self.settings, self._secret = settings, secret
        self._paths = {name: tuple(stream.pii) for name, stream in settings.streams.items()}
        self._any = frozenset(path for paths in self._paths.values() for path in paths)
        self._streams = {stream.topic: name for name, stream in settings.streams.items()}

    @property
    def is_on(self) -> bool:
        return self._secret is not None and bool(self._any)

    @property
    def paths(self) -> frozenset[str]:
        """Fields that are marked in any stream."""
        return self._any

    @property
    def hidden(self) -> list[str]:
        """All fields that are hidden, with their streams."""
        return (
            sorted(f"{stream}.{path}" for stream, paths in self._paths.items() for path in paths) if self.is_on else []
        )

    def alias(self, value: Any) -> Any:
        """The pseudonym of a value; null stays null, and a pseudonym is its own."""
        if value is None or not self.is_on or (isinstance(value, str) and _ALIAS.fullmatch(value)):
            return value
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        made = hmac.new(self._secret or b"", text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return PREFIX + made[:DIGITS]

    # ------------------------------------------------------------ events

    def event(self, stream: str, event: Any) -> Any:
        """An event with its marked fields hidden. A stream that is not known hides what any stream marks."""
        if not self.is_on or event is None:
            return event
        paths = self._paths.get(self._streams.get(stream, stream), tuple(self._any))
        if not isinstance(event, dict):  # no event at all: nobody knows what is in it
            return HIDDEN if paths else event
        return _with(event, [path.split(".") for path in paths], self.alias)

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Values by their dotted names, of any stream."""
        return {name: self.alias(value) if self.hides(name) else value for name, value in fields.items()}

    def hides(self, path: str) -> bool:
        """Whether a field, or what holds it or is in it, is marked in any stream."""
        return self.is_on and any(
            path == each or each.startswith(path + ".") or path.startswith(each + ".") for each in self._any
        )

    def raw(self, stream: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """A record as `key` and `value`: a value that is no object is hidden whole."""
        if not self.is_on or not self._paths.get(self._streams.get(stream, stream), tuple(self._any)):
            return dict(told)
        found = dict(told)
        for name in ("key", "key_base64"):
            if found.get(name) is not None:
                found[name] = self.alias(found[name])
        for name in ("value", "value_base64"):
            if name in found and found[name] is not None:
                value = found[name]
                found[name] = self.event(stream, value) if isinstance(value, dict) else HIDDEN
        if "message" in found:
            found["message"] = HIDDEN  # it may quote what was wrong
        return found

    def values_of(self, stream: str, event: Any) -> set[str]:
        """The texts of the marked values of an event, to be struck out of sentences about it."""
        if not self.is_on or not isinstance(event, dict):
            return set()
        found: set[str] = set()

        def note(value: Any) -> Any:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                found.add(str(value))
            return value

        paths = self._paths.get(self._streams.get(stream, stream), tuple(self._any))
        _with(event, [path.split(".") for path in paths], note)
        return found

    def text(self, text: str, values: Iterable[str]) -> str:
        """A sentence with these values struck out, the longest first."""
        for value in sorted(values, key=len, reverse=True):
            if value:
                text = text.replace(value, self.alias(value))
        return text

    # ------------------------------------------------------------ alerts

    def key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        return self.fields(key)

    def alert(self, alert: Mapping[str, Any], rule: Rule | None) -> dict[str, Any]:
        """An alert's key, emit and message. What an unknown rule wrote is hidden whole."""
        found = dict(alert)
        if not self.is_on:
            return found
        key, found["key"] = alert["key"], self.key(alert["key"])
        hidden = {str(value) for name, value in key.items() if self.hides(name)}
        emit = alert.get("emit", {})
        if rule is None:
            found["emit"] = dict.fromkeys(emit, HIDDEN)
            if found.get("message") is not None:
                found["message"] = HIDDEN
            return found
        marked = {name for name, reads in emit_reads(rule).items() if any(map(self.hides, reads))}
        found["emit"] = {name: self.alias(value) if name in marked else value for name, value in emit.items()}
        if found.get("message") is not None:
            others = [path for path in message_reads(rule) if self.hides(path) and path not in key]
            found["message"] = HIDDEN if others else self.text(found["message"], hidden)
        return found


def _with(event: Mapping[str, Any], paths: Sequence[Sequence[str]], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy with the values at these paths changed. A name with dots in it counts as well."""
    found = dict(event)
    for path in paths:
        whole = ".".join(path)
        if whole in found:
            found[whole] = change(found[whole])
        elif path[0] in found and isinstance(found[path[0]], dict) and len(path) > 1:
            found[path[0]] = _with(found[path[0]], [path[1:]], change)
        elif path[0] in found and isinstance(found[path[0]], list) and len(path) > 1:
            found[path[0]] = [
                _with(each, [path[1:]], change) if isinstance(each, dict) else each for each in found[path[0]]
            ]
    return found


# ---------------------------------------------------------------- what a rule's output reads


def emit_reads(rule: Rule) -> dict[str, set[str]]:
    """By name of emit, the fields that its value is computed from."""
    return {name: reads_of(expression) for name, expression in rule.emit}


def message_reads(rule: Rule) -> set[str]:
    return {path for part in rule.message if not isinstance(part, str) for path in reads_of(part)}


def reads_of(expression: Expr) -> set[str]:
    """The fields that an expression reads, wherever they stand in it."""
    return {part.path for part in walk(expression) if isinstance(part, Field)}
