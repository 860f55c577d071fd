"""/status, probes and metrics: how the service is doing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from samovar.common.errors import Refused
from samovar.service.http.metrics import exposition
from samovar.service.http.request import Reading, answered, app_state_of
from samovar.service.http.schemas.alerts import CaughtUp, Live, ReadyShown, StatusShown, answers_with
from samovar.service.http.schemas.state import Restores, RulesCounted, Samples, SnapshotsShown
from samovar.service.http.state import AppState
from samovar.service.http.status_poller import LOOK_EVERY_S, StatusSnapshot
from samovar.service.masking.fields import HIDDEN
from samovar.service.ops.status import TaskStatus
from samovar.state.snapshots import listed

probes = APIRouter(tags=["health"])
router = APIRouter(tags=["status"])


# ---------------------------------------------------------------- probes: no token, nothing told but yes or no


@probes.get("/live", responses=answers_with(Live))
def live() -> Response:
    """The process answers. It does so during a restore, too."""
    return answered({"live": True})


@probes.get("/ready", responses=answers_with(ReadyShown, 200, 503))
def ready(request: Request) -> Response:
    """The process answers, the log answers it, and containers are in the group."""
    why = _not_ready(app_state_of(request))
    return answered({"ready": why is None, "why": why}, 200 if why is None else 503)


@probes.get("/caught-up", responses=answers_with(CaughtUp, 200, 503))
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


def _not_ready(app_state: AppState) -> str | None:
    try:
        seen = app_state.watch.latest
    except Refused as refused:
        return refused.what
    if app_state.watch.is_old:
        return app_state.watch.trouble or "the log does not answer"
    if app_state.follower.trouble is not None and not app_state.follower.is_caught_up:
        return app_state.follower.trouble
    if not any(each.state == "running" for each in seen.status.containers):
        return "no container is in the group"
    return None


# ---------------------------------------------------------------- status


@router.get("/status", responses=answers_with(StatusShown))
def status(context: Reading) -> Response:
    """Containers, tasks, lag, event time, restores."""
    app_state = context.app_state
    seen = app_state.watch.latest
    found = seen.status.data()
    if found["rules_refused"] is not None and context.masks.is_on:
        found["rules_refused"] = HIDDEN  # it quotes lines of rules
    sizes = {(task.stage, task.partition): task.state_bytes for each in seen.presences for task in each.tasks}
    found["tasks"] = [
        told | {"state_bytes": sizes.get((task.stage, task.partition))}
        for told, task in zip(found["tasks"], seen.status.tasks, strict=True)
    ]
    rates = app_state.watch.rates()
    log = "kafka" if app_state.settings.log.kafka is not None else "embedded"
    more = {"caught_up": seen.is_caught_up, "counts": dict(seen.counts), "rates": rates, "log": log}
    return answered(found | more | {"trouble": app_state.watch.trouble})


@router.get("/status/history", responses=answers_with(Samples))
def history(context: Reading, minutes: Annotated[float, Query(gt=0, le=30)] = 15) -> Response:
    """The looks of the last minutes, as this process took them."""
    samples = context.app_state.watch.samples(minutes)
    return answered({"every_ms": int(LOOK_EVERY_S * 1000), "samples": samples})


@router.get("/status/rules", responses=answers_with(RulesCounted))
def rules(context: Reading) -> Response:
    """What each rule did since the containers started."""
    return answered({"rules": rule_counts(context.app_state.watch.latest)})


def rule_counts(seen: StatusSnapshot) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for presence in seen.presences:
        for rule in presence.rules:
            own = found.setdefault(
                rule.id,
                {"rule": rule.id, "matches": 0, "suppressed": 0, "live_partials": 0, "dropped": 0, "seconds": 0.0},
            )
            own["matches"] += rule.matches
            own["suppressed"] += rule.suppressed
            own["live_partials"] += rule.live_partials
            own["dropped"] += rule.dropped_partials + rule.dropped_events + rule.dropped_matches
            own["seconds"] = round(own["seconds"] + rule.seconds, 6)
    return [found[name] for name in sorted(found)]


@router.get("/status/restores", responses=answers_with(Restores))
def restores(context: Reading) -> Response:
    """Tasks that restore, and how far they are."""
    tasks = [task for task in context.app_state.watch.latest.status.tasks if task.restore is not None]
    return answered({"restores": [_restore(task) for task in tasks]})


def _restore(task: TaskStatus) -> dict[str, Any]:
    told = task.data()
    return {**{name: told[name] for name in ("stage", "partition", "container")}, **told["restore"]}


@router.get("/snapshots", responses=answers_with(SnapshotsShown))
def snapshots(context: Reading) -> Response:
    """Snapshots on this node."""
    site = context.app_state.rule_cache.site()
    tasks = []
    for here in site.stages():
        for partition in range(here.partitions):
            folder = here.folder(partition)
            if folder.exists():
                tasks.append({"stage": here.stage, "partition": partition, "snapshots": _snapshots(folder)})
    return answered({"tasks": tasks})


def _snapshots(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "number": each.number,
            "created": each.manifest.created_ms,
            "watermark": each.manifest.watermark_ms,
            "offset": each.manifest.changelog.offset,
            "bytes": each.bytes,
        }
        for each in listed(folder / "snapshots")
    ]


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(context: Reading) -> Response:
    """For Prometheus."""
    return Response(exposition(context.app_state), media_type="text/plain; version=0.0.4; charset=utf-8")
