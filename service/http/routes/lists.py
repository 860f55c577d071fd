"""/lists: shared lists, one with its changes, and what a change of it would do or does to the rules that name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.http import schemas
from samovar.service.http.masking import hides_list, shown_item
from samovar.service.http.request import Authoring, Body, NotedBody, Reading, RequestContext, answered
from samovar.service.http.schemas import answers_with
from samovar.service.rules import lists
from samovar.service.topology.rule_registry import load_registry

router = APIRouter(tags=["rules"])

SHOWN_CHANGES = 100
SHOWN_ITEMS = 50  # of one change
ListName = Annotated[str, Path(max_length=200)]
Item = str | int | float | bool


class ListChange(Body):
    """What would go on a list and what from it."""

    add: tuple[Item, ...] = Field((), max_length=10_000)
    remove: tuple[Item, ...] = Field((), max_length=10_000)


class Items(NotedBody):
    items: tuple[Item, ...] = Field(min_length=1, max_length=10_000)


@router.get("/lists", responses=answers_with(schemas.ListsShown))
def show_lists(context: Reading) -> Response:
    """Shared lists as they are now."""
    found = dict(lists.show(context.settings, context.log))
    for name in found if context.masks.is_on else ():
        if hides_list(context, name):
            found[name] = tuple(shown_item(context, name, item) for item in found[name])
    return answered({"lists": found})


@router.get("/lists/{name}", responses=answers_with(schemas.ListShown))
def show_list(context: Reading, name: ListName) -> Response:
    """A shared list: items, the rules that name it, and its changes, the newest first."""
    is_hidden = hides_list(context, name)

    def shown(items: Sequence[Any]) -> list[Any]:
        return [shown_item(context, name, item) if is_hidden else item for item in items]

    items = _items(context, name)
    changes = []
    for change in reversed(load_registry(context.settings, context.log).changes):
        record = change.lists.get(name)
        if record is not None:
            told = {"change": change.number, "at": change.at_ms, "author": change.author, "note": change.note}
            told |= {"added": len(record.added), "removed": len(record.removed), "items": len(record.items)}
            did = {"add": shown(record.added)[:SHOWN_ITEMS], "remove": shown(record.removed)[:SHOWN_ITEMS]}
            changes.append(told | did)
    # What a form should take a new item for.
    is_number = [isinstance(item, int | float) and not isinstance(item, bool) for item in items]
    loaded = context.app_state.rule_cache.get().rules
    return answered(
        {
            "list": name,
            "items": shown(items),
            "hidden": is_hidden,
            "kind": "number" if items and all(is_number) else "text",
            "rules": sorted(rule for rule, each in loaded.items() if name in each.lists),
            "changes": changes[:SHOWN_CHANGES],
            "changes_total": len(changes),
        }
    )


@router.post("/lists/{name}/plan", responses=answers_with(schemas.ListPlanned))
def plan_list(context: Authoring, name: ListName, body: ListChange) -> Response:
    """What a change of a list would do to the rules that name it. Nothing is written."""
    if body.add:
        refuse_adding(context, name)
    removed = real_items(context, name, _items(context, name), body.remove)
    plan = lists.plan_lists(context.settings, context.log, name, add=body.add, remove=removed)
    (record,) = plan.lists.values()
    rules = [{"rule": each.rule.name, "state": each.state, "told": each.state_text()} for each in plan.rules]
    counts = {"added": len(record.added), "removed": len(record.removed), "items": len(record.items)}
    return answered({"list": name, "change": plan.number, **counts, "rules": rules})


@router.post("/lists/{name}/add", responses=answers_with(schemas.ListChanged))
def add_items(context: Authoring, name: ListName, body: Items) -> Response:
    """Put items on a list, without publishing rules again."""
    refuse_adding(context, name)
    found = lists.add(context.settings, context.log, name, body.items, context.name, body.note)
    return answered({"list": name, "items": len(found)})


@router.post("/lists/{name}/remove", responses=answers_with(schemas.ListChanged))
def remove_items(context: Authoring, name: ListName, body: Items) -> Response:
    """Take items from a list."""
    known = lists.show(context.settings, context.log).get(name, ())
    items = real_items(context, name, known, body.items)
    found = lists.remove(context.settings, context.log, name, items, context.name, body.note)
    return answered({"list": name, "items": len(found)})


def real_items(context: RequestContext, name: str, items: Sequence[Any], given: Sequence[Item]) -> list[Item]:
    """What pseudonyms stand for, of a list's own items: anyone who sees nothing else can still take one from it. They
    cannot name an item itself, since the answer would tell whether it is there.
    """
    if not hides_list(context, name):
        return list(given)
    known = {shown_item(context, name, item): item for item in items}
    return [known[item] if item in known else shown_item(context, name, item) for item in given]


def refuse_adding(context: RequestContext, name: str) -> None:
    """Refuses to add to a list that a marked field is looked for in: by the alerts, one sees who has the value."""
    if hides_list(context, name):
        raise Refused(
            "pii-comparison",
            f"fields that are marked pii are looked for in the list {name}, and alerts would tell whose they are",
            "Ask somebody with the role operator, who sees these fields. You may take items from it, by pseudonym.",
        )


def _items(context: RequestContext, name: str) -> Sequence[Any]:
    found = lists.show(context.settings, context.log)
    if name not in found:
        hint = did_you_mean(name, list(found)) or (f"Lists are {', '.join(found)}." if found else "No rule has a list.")
        raise Refused("unknown-list", f"no rule has a list `{name[:80]}`", hint)
    return found[name]
