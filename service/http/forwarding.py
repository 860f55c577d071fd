"""Questions about state go to the node whose container owns it: this process answers for the stores next to it, and
asks the HTTP process next to another container for the rest.

Addresses come from the containers' own topic and from nowhere else; a forwarded question is never forwarded again, and
goes with the token or the session of the caller, so that nobody learns more by asking another node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2

from samovar.changelog.formats.heartbeat import MemberMetadata
from samovar.common.errors import Refused
from samovar.service.http.request import RequestContext, cookie_of, credential_of
from samovar.service.query.local_state import Task

HEADER = "samovar-tasks"  # the tasks that another node asks for
ANSWER_BYTES = 20_000_000

Answer = Callable[[Sequence[Task]], list[dict[str, Any]]]


def ask_owners(
    context: RequestContext, path: str, tasks: Sequence[Task] | None, here: Answer, **query: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What all owners of these tasks answer, and those that did not. Without tasks, of all."""
    app_state, owners = context.app_state, _owners(context)
    local: list[Task] = []
    remote: dict[str, list[Task]] = {}
    missing: list[dict[str, Any]] = []
    for stage, partition in _all_tasks(context) if tasks is None else tasks:
        owner = owners.get((stage, partition))
        if owner is None or owner.address == app_state.place.advertised:
            local.append((stage, partition))
        elif owner.address is not None:
            remote.setdefault(owner.address, []).append((stage, partition))
        elif owner.host == app_state.host:
            local.append((stage, partition))
        else:
            why = f"container {owner.slot} on {owner.host} has it, and answers no questions: start it with --http"
            missing.append({"stage": stage, "partition": partition, "why": why})
    pool = app_state.peers.pool
    asked = {address: pool.submit(_ask, context, address, path, own, query) for address, own in remote.items()}
    found = _with_container(context, here(local)) if local else []
    for address, future in asked.items():
        try:
            found += future.result()
        except Refused as refused:
            missing += [{"stage": stage, "partition": at, "why": refused.what} for stage, at in remote[address]]
    return found, missing


def answer_locally(context: RequestContext, here: Answer) -> list[dict[str, Any]]:
    """What this node holds of the tasks that another one asks for: STAGE/PARTITION, with commas between them."""
    given: list[Task] = []
    for part in context.request.headers.get(HEADER, "").split(","):
        stage, _, partition = part.rpartition("/")
        if not partition.isdecimal() or len(partition) > 6:
            raise Refused("bad-place", f"`{part[:80]}` is no task", "Other nodes write STAGE/PARTITION here.")
        given.append((stage, int(partition)))
    known = set(_all_tasks(context))
    return _with_container(context, here([task for task in given if task in known]))


def _all_tasks(context: RequestContext) -> list[Task]:
    site = context.app_state.rule_cache.site()
    return [(here.stage, partition) for here in site.stages() for partition in range(here.partitions)]


def _owners(context: RequestContext) -> dict[Task, MemberMetadata]:
    """Which container has which task, as far as containers told."""
    seen = context.app_state.watch.latest
    return {(task.stage, task.partition): each for each in seen.presences for task in each.tasks}


def _with_container(context: RequestContext, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    owners = _owners(context)
    for each in found:
        owner = owners.get((each["stage"], each["partition"]))
        each["container"] = None if owner is None else owner.slot
    return found


def _ask(
    context: RequestContext, address: str, path: str, tasks: Sequence[Task], query: dict[str, str | None]
) -> list[dict[str, Any]]:
    """Another node's answer: what it holds, hidden for anyone who asks as all else is."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused("owner-silent", f"{address} is not an address", "The container's record in the log is wrong.")
    headers = {HEADER: ",".join(f"{stage}/{partition}" for stage, partition in tasks)}
    shown = credential_of(context.request)  # sessions are in the log: every node knows them
    if shown.token is not None:
        headers["authorization"] = f"Bearer {shown.token}"
    elif shown.session is not None:
        headers["cookie"] = f"{cookie_of(context.app_state)}={shown.session}"
    given = {**query, **dict(context.request.query_params)}
    try:
        params = {name: value for name, value in given.items() if value is not None}
        client = context.app_state.peers.client
        response = client.get(f"{address}/api/v1/held/{path}", params=params, headers=headers)
        data = response.json() if len(response.content) <= ANSWER_BYTES else None
    except (httpx2.HTTPError, json.JSONDecodeError, UnicodeDecodeError) as error:
        hint = "Ask again in a moment; `samovar status` says whether the container runs."
        raise Refused("owner-silent", f"the node {address} does not answer", hint, type(error).__name__) from error
    if response.status_code != 200 or not isinstance(data, list):
        raise Refused("owner-silent", f"the node {address} answered with {response.status_code}", "Look at its log.")
    return data
