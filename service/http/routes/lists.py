"""/lists/NAME: one shared list as people look at it: its items, the rules that name it, who changed what, and a change
before it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.http.masking.rules import hides_list, shown_item
from samovar.service.http.request import Authoring, Body, Reading, answered
from samovar.service.http.schemas.alerts import answers_with
from samovar.service.http.schemas.rules import ListPlanned, ListShown
from samovar.service.http.state import AppState
from samovar.service.masking.fields import Masks
from samovar.service.rules import lists
from samovar.service.topology.rule_registry import read_rulebook

router = APIRouter(tags=["rules"])

SHOWN_CHANGES = 100
SHOWN_ITEMS = 50  # of one change
ListName = Annotated[str, Path(max_length=200)]
Item = str | int | float | bool


class ListChange(Body):
    """What would go on a list and what from it."""

    add: tuple[Item, ...] = Field((), max_length=10_000)
    remove: tuple[Item, ...] = Field((), max_length=10_000)


@router.get("/lists/{name}", responses=answers_with(ListShown))
def show_list(context: Reading, name: ListName) -> Response:
    """A shared list: items, the rules that name it, and its changes, the newest first."""
    app_state, masks = context.app_state, context.masks
    is_hidden = hides_list(app_state, masks, name)

    def alias(item: Any) -> Any:
        return shown_item(masks, name, item) if is_hidden else item

    items = _items(app_state, name)
    changes = []
    for change in reversed(read_rulebook(app_state.settings, app_state.log).changes):
        record = change.lists.get(name)
        if record is not None:
            told = {"change": change.number, "at": change.at_ms, "author": change.author, "note": change.note}
            counts = {"added": len(record.added), "removed": len(record.removed), "items": len(record.items)}
            did = {"add": list(map(alias, record.added)), "remove": list(map(alias, record.removed))}
            changes.append(told | counts | {each: shown[:SHOWN_ITEMS] for each, shown in did.items()})
    return answered(
        {
            "list": name,
            "items": [alias(item) for item in items],
            "hidden": is_hidden,
            "kind": kind_of(items),
            "rules": rules_naming(app_state, name),
            "changes": changes[:SHOWN_CHANGES],
            "changes_total": len(changes),
        }
    )


@router.post("/lists/{name}/plan", responses=answers_with(ListPlanned))
def plan_list(context: Authoring, name: ListName, body: ListChange) -> Response:
    """What a change of a list would do to the rules that name it. Nothing is written."""
    app_state = context.app_state
    if body.add:
        refuse_adding(app_state, context.masks, name)
    removed = real_items(app_state, context.masks, name, _items(app_state, name), body.remove)
    plan = lists.plan_lists(app_state.settings, app_state.log, name, add=body.add, remove=removed)
    (record,) = plan.lists.values()
    rules = [{"rule": each.rule.name, "state": each.state, "told": each.state_text()} for each in plan.rules]
    counts = {"added": len(record.added), "removed": len(record.removed), "items": len(record.items)}
    return answered({"list": name, "change": plan.number, **counts, "rules": rules})


def real_items(app_state: AppState, masks: Masks, name: str, items: Sequence[Any], given: Sequence[Item]) -> list[Item]:
    """What pseudonyms stand for, of a list's own items: anyone who sees nothing else can still take one from it. They
    cannot name an item itself, since the answer would tell whether it is there.
    """
    if not hides_list(app_state, masks, name):
        return list(given)
    known = {shown_item(masks, name, item): item for item in items}
    return [known[item] if item in known else shown_item(masks, name, item) for item in given]


def refuse_adding(app_state: AppState, masks: Masks, name: str) -> None:
    """Whoever puts a value on a list that a marked field is looked for in sees by the alerts who has it."""
    if hides_list(app_state, masks, name):
        raise Refused(
            "pii-comparison",
            f"fields that are marked pii are looked for in the list {name}, and alerts would tell whose they are",
            "Ask somebody with the role operator, who sees these fields. You may take items from it, by pseudonym.",
        )


def kind_of(items: Sequence[Any]) -> str:
    """What a form should take a new item for.

    >>> kind_of([1, 2.5]), kind_of(["a", 1]), kind_of([])
    ('number', 'text', 'text')
    """
    numbers = [isinstance(item, int | float) and not isinstance(item, bool) for item in items]
    return "number" if numbers and all(numbers) else "text"


def rules_naming(app_state: AppState, name: str) -> list[str]:
    return sorted(rule for rule, loaded in app_state.rule_cache.get().rules.items() if name in loaded.lists)


def _items(app_state: AppState, name: str) -> Sequence[Any]:
    found = lists.show(app_state.settings, app_state.log)
    if name not in found:
        hint = did_you_mean(name, list(found)) or (f"Lists are {', '.join(found)}." if found else "No rule has a list.")
        raise Refused("unknown-list", f"no rule has a list `{name[:80]}`", hint)
    return found[name]
