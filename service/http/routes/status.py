"""/status, probes and metrics: how the service is doing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from samovar.common.errors import Refused
from samovar.service.http import schemas
from samovar.service.http.metrics import exposition
from samovar.service.http.request import Reading, answered, app_state_of
from samovar.service.http.schemas import answers_with
from samovar.service.http.status_poller import LOOK_EVERY_S
from samovar.service.masking.fields import HIDDEN
from samovar.state.snapshots import Snapshot, listed

probes = APIRouter(tags=["health"])
router = APIRouter(tags=["status"])

COUNTED = ("matches", "suppressed", "live_partials", "dropped", "seconds")  # of a rule


# ---------------------------------------------------------------- probes: no token, nothing told but yes or no


@probes.get("/live", responses=answers_with(schemas.Live))
def live() -> Response:
    """The process answers. It does so during a restore, too."""
    return answered({"live": True})


@probes.get("/ready", responses=answers_with(schemas.ReadyShown, 200, 503))
def ready(request: Request) -> Response:
    """The process answers, the log answers it, and containers are in the group."""
    app_state, why = app_state_of(request), None
    try:
        seen = app_state.watch.latest
        if app_state.watch.is_old:
            why = app_state.watch.trouble or "the log does not answer"
        elif app_state.follower.trouble is not None and not app_state.follower.is_caught_up:
            why = app_state.follower.trouble
        elif not any(each.state == "running" for each in seen.status.containers):
            why = "no container is in the group"
    except Refused as refused:
        why = refused.what
    return answered({"ready": why is None, "why": why}, 200 if why is None else 503)


@probes.get("/caught-up", responses=answers_with(schemas.CaughtUp, 200, 503))
def caught_up(request: Request) -> Response:
    """All tasks run, and no record waits for long."""
    app_state = app_state_of(request)
    try:
        seen = app_state.watch.latest
    except Refused:
        return answered({"caught_up": False, "lag": None, "behind_s": None}, 503)
    is_so = seen.is_caught_up and not app_state.watch.is_old
    behind_s = max((task.behind_s for task in seen.status.tasks), default=0.0)
    return answered({"caught_up": is_so, "lag": seen.status.lag, "behind_s": behind_s}, 200 if is_so else 503)


# ---------------------------------------------------------------- status


@router.get("/status", responses=answers_with(schemas.StatusShown))
def status(context: Reading) -> Response:
    """Containers, tasks, lag, event time, restores."""
    app_state = context.app_state
    seen = app_state.watch.latest
    found = seen.status.data()
    if found["rules_refused"] is not None and context.masks.is_on:
        found["rules_refused"] = HIDDEN  # it quotes lines of rules
    sizes = {(task.stage, task.partition): task.state_bytes for each in seen.presences for task in each.tasks}
    found["tasks"] = [each | {"state_bytes": sizes.get((each["stage"], each["partition"]))} for each in found["tasks"]]
    rates = app_state.watch.rates()
    log = "kafka" if context.settings.log.kafka is not None else "embedded"
    more = {"caught_up": seen.is_caught_up, "counts": dict(seen.counts), "rates": rates, "log": log}
    return answered(found | more | {"trouble": app_state.watch.trouble})


@router.get("/status/history", responses=answers_with(schemas.Samples))
def history(context: Reading, minutes: Annotated[float, Query(gt=0, le=30)] = 15) -> Response:
    """The looks of the last minutes, as this process took them."""
    samples = context.app_state.watch.samples(minutes)
    return answered({"every_ms": int(LOOK_EVERY_S * 1000), "samples": samples})


@router.get("/status/rules", responses=answers_with(schemas.RulesCounted))
def rules(context: Reading) -> Response:
    """What each rule did since the containers started."""
    found: dict[str, dict[str, float]] = {}
    for metadata in context.app_state.watch.latest.presences:
        for rule in metadata.rules:
            own = found.setdefault(rule.id, dict.fromkeys(COUNTED, 0))
            dropped = rule.dropped_partials + rule.dropped_events + rule.dropped_matches
            for name in COUNTED:
                own[name] += dropped if name == "dropped" else getattr(rule, name)
    counts = [{"rule": name, **found[name], "seconds": round(found[name]["seconds"], 6)} for name in sorted(found)]
    return answered({"rules": counts})


@router.get("/status/restores", responses=answers_with(schemas.Restores))
def restores(context: Reading) -> Response:
    """Tasks that restore, and how far they are."""
    tasks = [task.data() for task in context.app_state.watch.latest.status.tasks if task.restore is not None]
    named = [{name: task[name] for name in ("stage", "partition", "container")} | task["restore"] for task in tasks]
    return answered({"restores": named})


@router.get("/snapshots", responses=answers_with(schemas.SnapshotsShown))
def snapshots(context: Reading) -> Response:
    """Snapshots on this node."""
    tasks = []
    for here in context.app_state.rule_cache.site().stages():
        for partition in range(here.partitions):
            folder = here.folder(partition)
            if folder.exists():
                found = [_snapshot(each) for each in listed(folder / "snapshots")]
                tasks.append({"stage": here.stage, "partition": partition, "snapshots": found})
    return answered({"tasks": tasks})


def _snapshot(found: Snapshot) -> dict[str, Any]:
    told, offset = found.manifest, found.manifest.changelog.offset
    times = {"created": told.created_ms, "watermark": told.watermark_ms}
    return {"number": found.number, **times, "offset": offset, "bytes": found.bytes}


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(context: Reading) -> Response:
    """For Prometheus."""
    return Response(exposition(context.app_state), media_type="text/plain; version=0.0.4; charset=utf-8")
