"""/views/NAME: the versions of a view, one of them shown again, and a new one made: a job on Spark in this process.

Names are those of the service's own views, and nothing else is taken from anyone who asks: no SQL, no path, no master.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.service.auth import audit
from samovar.service.http.jobs import OnProgress
from samovar.service.http.request import Body, Operating, Reading, answered
from samovar.service.http.routes.views import told
from samovar.service.http.schemas.alerts import answers_with
from samovar.service.http.schemas.rules import JobBegun
from samovar.service.http.schemas.state import ViewRolledBack, ViewWhole
from samovar.service.http.state import AppState
from samovar.service.views.commands import chosen, roll_back, show
from samovar.service.views.store import ViewStore

router = APIRouter(tags=["views"])

ViewName = Annotated[str, Path(max_length=200)]
_SPARK = threading.Lock()  # one session per process: who ends it would end another's


class RollingBackView(Body):
    to: int | None = Field(None, ge=1, le=10_000_000)


class BuildViewBody(Body):
    """`anew`: all rows, also where the view's file says that a part is enough."""

    anew: bool = False


@router.get("/views/{name}", responses=answers_with(ViewWhole))
def view(context: Reading, name: ViewName) -> Response:
    """A view, and every version of it that is kept, the newest first."""
    settings = context.app_state.settings
    found = show(settings, name)
    store = ViewStore(settings.views.store, name)
    kept = [store.manifest(version) for version in reversed(found.versions)]
    versions = [
        {"version": each.version, "made": each.made_ms, "rows": each.rows, "kind": each.kind, "base": each.base}
        for each in kept
    ]
    return answered({**told(context, found), "kept": versions})


@router.post("/views/{name}/rollback", responses=answers_with(ViewRolledBack))
def rollback(context: Operating, name: ViewName, body: RollingBackView) -> Response:
    """Show an earlier version again; without `to`, the one before. Nothing is deleted."""
    app_state = context.app_state
    before = show(app_state.settings, name).manifest
    made = roll_back(app_state.settings, name, body.to)
    detail = {"view": name, "from": None if before is None else before.version, "to": made.version}
    audit.record(app_state.log, app_state.settings, context.name, "view rolled back", detail)
    return answered({"view": name, "version": made.version, "rows": made.rows, "made": made.made_ms})


@router.post("/views/{name}/refresh", status_code=202, responses=answers_with(JobBegun, 202))
def refresh(context: Operating, name: ViewName, body: BuildViewBody) -> Response:
    """Make a new version, as a job: GET /jobs/JOB tells how far it is, and then what was made."""
    app_state = context.app_state
    chosen(app_state.settings, [name])  # what is wrong with it is told before Spark starts

    def work(on_progress: OnProgress) -> Any:
        if not _SPARK.acquire(blocking=False):
            raise Refused("view-busy", "another view is being made here", "Wait for it to end, and try again.")
        try:
            return _made(app_state, name, on_progress, anew=body.anew)
        finally:
            _SPARK.release()

    job = app_state.jobs.start("view", context.name, work)
    audit.record(app_state.log, app_state.settings, context.name, "view refreshed", {"view": name, "anew": body.anew})
    return answered({"job": job.number}, 202)


def _made(app_state: AppState, name: str, on_progress: OnProgress, *, anew: bool) -> dict[str, Any]:
    from samovar.changelog.spark.progress import JobProgress  # noqa: PLC0415 - with Spark only
    from samovar.service.spark.session import starting_for  # noqa: PLC0415 - as above
    from samovar.service.views.commands import rebuild  # noqa: PLC0415 - next to it
    from samovar.service.views.commands import refresh as refreshed  # noqa: PLC0415 - its name is taken here

    def progress(found: JobProgress) -> None:
        done, total = (found.rows, found.total) if found.total else (found.tasks_done, found.tasks)
        on_progress(min(done / total, 0.99) if total else 0.0, found.rate)

    with starting_for(app_state.settings, "samovar views") as start:
        (made,) = (rebuild if anew else refreshed)(app_state.settings, app_state.log, start.ready(), [name], progress)
    if isinstance(made, Refused):
        raise made
    manifest = made.manifest
    version = None if manifest is None else {"version": manifest.version, "rows": manifest.rows, "kind": manifest.kind}
    return {"view": name, "seconds": round(made.seconds, 3), "made": version, "notes": list(made.notes)}
