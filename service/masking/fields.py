"""Values that are marked `pii` in a stream, hidden from those who may not see them.

A marked value becomes a pseudonym, `pii:` and 16 digits: the same value has the same one everywhere, so that events of
one card can still be seen to be of one card, and nobody can compute the value from it (it is keyed by a secret). What
was computed from a marked value, and what cannot be told apart (a dead letter that is not JSON, an alert of a rule that
is not known), is hidden whole: samovar.service.masking.lineage says which is which.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.common.errors import Refused
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Expr, History, Rule
from samovar.service.config.models import ServiceFile
from samovar.service.masking.lineage import Flow, RuleFlows, compared, flow_of, flows_of

PREFIX = "pii:"
HIDDEN = "(hidden: it may hold values that are marked pii)"
DIGITS = 16
KNOWN_RULES = 1_000  # whose flows are remembered
_ALIAS = re.compile(PREFIX + "[0-9a-f]{16}")
_ID = re.compile("[0-9a-f]{32}")


class Lineage:
    """The source of truth for what is marked: fields of streams, and what rules make of them."""

    def __init__(self, settings: ServiceFile) -> None:
        self.settings = settings
        self.paths = {name: tuple(stream.pii) for name, stream in settings.streams.items()}
        self.any = frozenset(path for paths in self.paths.values() for path in paths)
        self.streams = {stream.topic: name for name, stream in settings.streams.items()}
        self._known: dict[int, tuple[Rule, RuleFlows]] = {}

    def paths_of(self, stream: str) -> tuple[str, ...]:
        """What is marked in a stream, by its name or its topic; of one that is not known, what any marks."""
        return self.paths.get(self.streams.get(stream, stream), tuple(self.any))

    def is_marked(self, path: str) -> bool:
        """Whether a field, or what holds it or is in it, is marked in any stream."""
        return _overlaps(path, self.any)

    def is_marked_in(self, stream: str, path: str) -> bool:
        return _overlaps(path, self.paths_of(stream))

    def of(self, rule: Rule) -> RuleFlows:
        """What is in a rule's output; a rule is looked at once."""
        known = self._known.get(id(rule))
        if known is not None and known[0] is rule:
            return known[1]
        found = flows_of(rule, self.is_marked)
        if len(self._known) >= KNOWN_RULES:
            self._known.clear()
        self._known[id(rule)] = rule, found
        return found

    def has_clear_key(self, rule: Rule | None) -> bool:
        return not self.any or (rule is not None and self.of(rule).has_clear_key)


def _overlaps(path: str, marked: Sequence[str] | frozenset[str]) -> bool:
    return any(path == each or each.startswith(path + ".") or path.startswith(each + ".") for each in marked)


@dataclass(frozen=True)
class Masks:
    """What one who asks may see; with `sees_all`, all of it."""

    lineage: Lineage
    secret: bytes
    sees_all: bool = False

    @property
    def is_on(self) -> bool:
        return not self.sees_all and bool(self.lineage.any)

    @property
    def hidden(self) -> list[str]:
        """All fields that are hidden, with their streams."""
        paths = self.lineage.paths
        return sorted(f"{stream}.{path}" for stream in paths for path in paths[stream]) if self.is_on else []

    def alias(self, value: Any) -> Any:
        """The pseudonym of a value; null stays null, and a pseudonym is its own."""
        return self.pseudonym(value) if self.is_on else value

    def pseudonym(self, value: Any, domain: str = "") -> Any:
        """The same for everybody. Those of another domain are others: nobody who may name a value learns its own."""
        if value is None or (not domain and isinstance(value, str) and _ALIAS.fullmatch(value)):
            return value
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        told = f"{domain}\0{text}" if domain else text
        made = hmac.new(self.secret, told.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        return PREFIX + made[:DIGITS]

    def shows(self, expression: Expr) -> bool:
        """Whether what an expression gives may be told."""
        return not self.is_on or flow_of(expression, self.lineage.is_marked) is Flow.CLEAR

    def value(self, flow: Flow, value: Any) -> Any:
        """A value by what is in it. A computed null is hidden like all others: `1 / (number(card) - 4)` is null for one
        value and not for others.
        """
        if not self.is_on or flow is Flow.CLEAR:
            return value
        if flow is Flow.COMPUTED:
            return HIDDEN
        return [self.alias(each) for each in value] if isinstance(value, list) else self.alias(value)

    # ------------------------------------------------------------ comparing

    def refuse_comparing(self, rule: Rule, what: str) -> None:
        """Refuses a rule that compares marked fields: what it finds would tell what they hold."""
        found = compared(rule, self.lineage.is_marked) if self.is_on else []
        if found:
            raise not_compared(found, what)

    # ------------------------------------------------------------ events

    def event(self, stream: str, event: Any) -> Any:
        """An event with its marked fields hidden. A stream that is not known hides what any stream marks."""
        if not self.is_on or event is None:
            return event
        paths = self.lineage.paths_of(stream)
        if not isinstance(event, dict):  # no event at all: nobody knows what is in it
            return HIDDEN if paths else event
        return masked(event, [path.split(".") for path in paths], self.alias)

    def fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Values by their dotted names, of any stream."""
        is_marked = self.lineage.is_marked
        return {name: self.alias(value) if is_marked(name) else value for name, value in fields.items()}

    def raw(self, stream: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """A record as `key` and `value`: a value that is not an object, or of no stream that is known, is hidden
        whole.
        """
        if not self.is_on or not self.lineage.paths_of(stream):
            return dict(told)
        found = dict(told)
        is_known = self.lineage.streams.get(stream, stream) in self.lineage.paths
        for name in ("key", "key_base64"):
            if name in found:
                found[name] = self.alias(found[name])
        for name in ("value", "value_base64"):
            value = found.get(name)
            if value is not None:
                found[name] = self.event(stream, value) if isinstance(value, dict) and is_known else HIDDEN
        if "message" in found:
            found["message"] = HIDDEN  # it may quote what was wrong
        return found

    def history(self, call: History | None, value: Any) -> Any:
        """A value that a history function keeps. Of a call that is not known, it is hidden."""
        if not self.is_on:
            return value
        return HIDDEN if call is None else self.value(self.history_flow(call), value)

    def history_flow(self, call: History) -> Flow:
        is_marked = self.lineage.is_marked
        if call.where is not None and flow_of(call.where, is_marked) is not Flow.CLEAR:
            return Flow.COMPUTED
        return Flow.CLEAR if call.value is None else flow_of(call.value, is_marked)

    # ------------------------------------------------------------ alerts

    def key(self, key: Mapping[str, Any], rule: Rule | None) -> dict[str, Any]:
        """A key's parts. A computed part is a pseudonym too: without one its alerts could not be told apart."""
        if not self.is_on:
            return dict(key)
        flows = {} if rule is None else self.lineage.of(rule).key
        return {
            name: self.alias(value) if flows.get(name, Flow.OWN) is not Flow.CLEAR else value
            for name, value in key.items()
        }

    def key_text(self, text: str, rule: Rule | None) -> str:
        return text if self.lineage.has_clear_key(rule) else str(self.alias(text))

    def key_ref(self, text: str, rule: Rule | None) -> str:
        """What a key is called in addresses and titles, which are kept in places that nobody guards."""
        return text if self.lineage.has_clear_key(rule) else str(self.pseudonym(text))

    def alert(self, alert: Mapping[str, Any], rule: Rule | None) -> dict[str, Any]:
        """An alert's id, key, emit and message. What an unknown rule wrote is hidden whole."""
        found = dict(alert)
        if "id" in alert:
            found["id"] = self.alert_id(str(alert["id"]), rule)
        if not self.is_on:
            return found
        flows = None if rule is None else self.lineage.of(rule)
        found["key"] = self.key(alert["key"], rule)
        if "alarm" in alert and not alert["key"]:
            return found  # about the rule: the service's own words and numbers
        emitted = {} if flows is None else flows.emit
        emit = alert.get("emit", {})
        found["emit"] = {name: self.value(emitted.get(name, Flow.COMPUTED), value) for name, value in emit.items()}
        if found.get("message") is not None:
            found["message"] = HIDDEN if flows is None else self._message(found["message"], alert["key"], flows)
        return found

    def _message(self, text: str, key: Mapping[str, Any], flows: RuleFlows) -> str:
        """A message, with pseudonyms where it quotes the key. Where it quotes anything else that is marked it is
        hidden, and where it is not what the rule's template gives.
        """
        # What is known of the text and what to say for it, between what is not known.
        runs: list[list[tuple[str, str]]] = [[]]
        for part in flows.message:
            if isinstance(part, str):
                runs[-1].append((part, part))
            elif part[0] is Flow.CLEAR:
                runs.append([])
            else:
                value = key.get(part[1]) if part[0] is Flow.OWN and part[1] is not None else None
                if not isinstance(value, str):
                    return HIDDEN
                runs[-1].append((value, str(self.alias(value))))
        joined = [("".join(said for said, _ in run), "".join(told for _, told in run)) for run in runs]
        return text if all(said == told for said, told in joined) else replaced(text, joined)

    # An alert's id is a hash of its key among others: who knows the rest can try keys until the hash fits. So it is
    # enciphered, by a Feistel network of four rounds over its two halves, and the same for all who see the alert.

    def alert_id(self, id: str, rule: Rule | None) -> str:
        if self.lineage.has_clear_key(rule):
            return id
        return self._ciphered(id, range(4)) if _ID.fullmatch(id) else HIDDEN

    def real_id(self, id: str) -> str:
        """The id that an enciphered one stands for."""
        return self._ciphered(id, range(3, -1, -1)) if _ID.fullmatch(id) else id

    def place(self, place: str) -> str:
        """Where a search goes on, `AT.ID`: all of them are enciphered."""
        at, _, id = place.partition(".")
        return f"{at}.{self._ciphered(id, range(4)) if _ID.fullmatch(id) else id}"

    def real_place(self, place: str) -> str:
        at, _, id = place.partition(".")
        return f"{at}.{self.real_id(id)}"

    def _ciphered(self, id: str, rounds: range) -> str:
        left, right = int(id[:16], 16), int(id[16:], 16)
        for number in rounds:
            half, other = (right, left) if number % 2 == 0 else (left, right)
            mixed = hmac.digest(self.secret, b"alert id %d %016x" % (number, half), "sha256")
            other ^= int.from_bytes(mixed[:8], "big")
            left, right = (other, half) if number % 2 == 0 else (half, other)
        return f"{left:016x}{right:016x}"


def replaced(text: str, runs: Sequence[tuple[str, str]]) -> str:
    """A text that is these runs with anything between them, with others in their place; hidden where it is not so.

    >>> replaced("c1 paid 7 to c1", [("c1 paid ", "x paid "), (" to c1", " to x")])
    'x paid 7 to x'
    """
    (first, begins), *others = runs
    if not text.startswith(first):
        return HIDDEN
    said, at = [begins], len(first)
    for place, (run, instead) in enumerate(others, 1):
        found = len(text) - len(run) if place == len(others) else text.find(run, at)
        if found < at or not text.startswith(run, found):
            return HIDDEN
        said += [text[at:found], instead]
        at = found + len(run)
    return "".join(said) if at == len(text) else HIDDEN


def is_alias(text: str) -> bool:
    return _ALIAS.fullmatch(text) is not None


def not_compared(fields: Sequence[str], what: str) -> Refused:
    names = ", ".join(f"`{each}`" for each in fields)
    many = "are" if len(fields) > 1 else "is"
    return Refused(
        "pii-comparison",
        f"{names} {many} marked pii, and {what} would tell what {'they hold' if len(fields) > 1 else 'it holds'}",
        "Ask somebody with the role operator, who sees these fields. Others find keys by the pseudonyms that they see.",
    )


# ---------------------------------------------------------------- inside an event


def masked(value: Any, paths: Sequence[Sequence[str]], change: Callable[[Any], Any]) -> Any:
    """A copy with all values at these paths changed: nested, under names with dots in them, and in lists of any depth.
    Where a path goes on and there is nothing that it could go on in, the value that stands there is changed.

    >>> event = {"user.email": "a", "user": [[{"email": "b"}, "c"]], "n": 1}
    >>> masked(event, [["user", "email"]], lambda value: "x")
    {'user.email': 'x', 'user': [[{'email': 'x'}, 'x']], 'n': 1}
    """
    if isinstance(value, list):
        return [masked(each, paths, change) for each in value]
    if not isinstance(value, dict):
        return change(value)
    found = dict(value)
    for name, inner in value.items():
        rests = [rest for path in paths if (rest := _after(name, path)) is not None]
        if any(not rest for rest in rests):
            found[name] = change(inner)
        elif rests:
            found[name] = masked(inner, rests, change)
    return found


def _after(name: str, path: Sequence[str]) -> Sequence[str] | None:
    """What is left of a path after a name, which may have dots in it; None where the name is not how it begins."""
    for count in range(1, len(path) + 1):
        if ".".join(path[:count]) == name:
            return path[count:]
    return None


def names_values(lineage: Lineage, text: str) -> bool:
    """Whether a rule's text names values of marked fields, however it writes them, or cannot be read."""
    rule = load_text(text).rule
    return rule is None or bool(lineage.of(rule).quotes)
