"""Keys: which events belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from samovar.patterns.syntax.tree import Bracket, Key
from tests.oracle.events import Event
from tests.oracle.expressions import Scope, evaluate
from tests.oracle.values import Value, identity

# Keys keep their type: 1, "1" and true are three keys.
KeyValue: TypeAlias = tuple[tuple[str, Value], ...]


def key_of(by: Sequence[Key] | None, event: Event) -> KeyValue | None:
    """The event's key under a `by` list; None where a part of it is null. Without `by` there is one key for all."""
    values = [evaluate(part.value, Scope(event)) for part in by or ()]
    return None if any(value is None for value in values) else tuple(identity(value) for value in values)


def accepts_type(bracket: Bracket, kind: str) -> bool:
    return bracket.type in ("any", kind)


def keys_of(form_by: Sequence[Key], brackets: Iterable[Bracket], event: Event) -> tuple[list[KeyValue], bool]:
    """The keys that an event belongs to, and whether it ought to have one but the value is null.

    A bracket's own `by` replaces the form's list for the types that it takes, so one type under two names belongs to
    two keys. A type that no bracket takes has the form's key. Where only steps have keys, such a type has none.
    """
    written = list(brackets)
    lists = [bracket.by or () for bracket in written if accepts_type(bracket, event.type)]
    # The form's own list stands before all brackets; one that was taken over from a step does not.
    only_steps_have_keys = bool(form_by) and form_by[0].span > written[0].span
    if not lists and not only_steps_have_keys:
        lists = [tuple(form_by)]
    if not form_by and any(bracket.by for bracket in written):
        lists = [by for by in lists if by]
    found = list(dict.fromkeys(present(key_of(by, event) for by in lists)))
    return found, bool(lists) and not found


def present(keys: Iterable[KeyValue | None]) -> Iterator[KeyValue]:
    return (key for key in keys if key is not None)


def key_names(form_by: Sequence[Key], first: Bracket) -> list[str]:
    """A match's key has the names of the form's `by` or, without it, of the first step's."""
    return [part.name for part in form_by or first.by or ()]
