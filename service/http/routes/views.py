"""/views: what is published of the materialized views, their rows, picked and ordered, and their versions: one of them
shown again, and a new one made, by a job on Spark in this process.

No SQL is taken here: `samovar sql` takes it, from anyone who may run commands. Names are those of the service's own
views: no path and no master is taken from anyone who asks.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path
from fastapi import Query as QueryParam
from fastapi.responses import Response
from pydantic import Field

from samovar.common.arrow import require_arrow
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.http import schemas
from samovar.service.http.jobs import OnProgress
from samovar.service.http.masking import flows_of_view
from samovar.service.http.request import Body, Operating, Reading, RequestContext, answered, json_text
from samovar.service.http.schemas import answers_with, fields_of
from samovar.service.http.state import AppState
from samovar.service.masking.fields import Masks, is_alias, not_compared
from samovar.service.masking.lineage import Flow
from samovar.service.query.key_lookup import real_key
from samovar.service.views import commands
from samovar.service.views.commands import ViewListing, list_views, makeable, plain, roll_back, show
from samovar.service.views.files import View
from samovar.service.views.store import ViewManifest, ViewStore

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

router = APIRouter(tags=["views"])

ROWS_MOST = 1_000
ORDERED_MOST = 200_000  # rows that are put in order; more are refused
ViewName = Annotated[str, Path(max_length=200)]
ViewKey = Annotated[str, Path(min_length=1, max_length=1_000)]
MoreOfKey = Annotated[Sequence[str], QueryParam(alias="key", max_length=20)]
Value = str | int | float | bool | None
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_SPARK = threading.Lock()  # one session per process: who ends it would end another's


class ColumnFilter(Body):
    """A condition on one column."""

    column: str = Field(max_length=200)
    op: Literal["==", "!=", "<", "<=", ">", ">="] = "=="
    value: Value = None


class Query(Body):
    """Which rows of a view: those for which all conditions hold, of some columns, in an order."""

    where: tuple[ColumnFilter, ...] = Field((), max_length=20)
    columns: tuple[str, ...] = Field((), max_length=100)
    order: str | None = Field(None, max_length=200)
    desc: bool = False
    limit: int = Field(100, ge=1, le=ROWS_MOST)


class RollingBackView(Body):
    to: int | None = Field(None, ge=1, le=10_000_000)


class BuildViewBody(Body):
    """`rebuild`: all rows, also where the view's file says that a part is enough."""

    rebuild: bool = False


@router.get("/views", responses=answers_with(schemas.ViewsShown))
def views(context: Reading) -> Response:
    """All views, what is published of each and how far it is behind, and what is wrong with files that are none."""
    found, bad = list_views(context.settings, context.app_state.log)
    return answered(
        {"views": [view_data(context, each) for each in found], "problems": [] if bad is None else [str(bad)]}
    )


@router.post("/views/{name}/query", responses=answers_with(schemas.ViewRows))
def query(context: Reading, name: ViewName, body: Query) -> Response:
    """Rows of a view as it is published now."""
    settings = context.settings
    show(settings, name)  # says what is near
    store = commands.published_view(settings, name)
    manifest = store.version_at()  # of these rows, whatever is published meanwhile
    flows = flows_of_view(context.app_state, manifest) if context.masks.is_on else None
    try:
        columns, rows = _rows(store, manifest, body, flows, context.masks)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        what = f"the view `{name}` cannot be asked for this"
        hint = "Compare a column with a value of its own type; GET /api/v1/views lists columns and types."
        raise Refused("view-query", what, hint, "" if flows else str(error).splitlines()[0][:300]) from error
    return answered({"columns": columns, "rows": rows})


def view_data(context: RequestContext, view: ViewListing) -> dict[str, Any]:
    """A view, with the columns that hold something marked, for who may not see it."""
    flows: Mapping[str, Flow] = {}
    if view.manifest is not None and context.masks.is_on:
        flows = flows_of_view(context.app_state, view.manifest)
    shown = {name: value for name, value in view.to_json().items() if name != "path"}
    return {**shown, "hidden": sorted(name for name, flow in flows.items() if flow is not Flow.CLEAR)}


def _rows(
    store: ViewStore, manifest: ViewManifest, body: Query, flows: Mapping[str, Flow] | None, masks: Masks
) -> tuple[list[str], list[list[Any]]]:
    require_arrow("rows of views")
    data = store.rows(manifest)
    known = [name for name in data.schema.names if not name.startswith("_")]
    told = {name: Flow.CLEAR if flows is None else flows.get(name, Flow.COMPUTED) for name in known}
    hidden = {name: flow for name, flow in told.items() if flow is not Flow.CLEAR}
    compared = [*(each.column for each in body.where), *([body.order] if body.order else [])]
    for name in [*body.columns, *compared]:
        if name not in known:
            hint = did_you_mean(name, known) or f"Columns are {', '.join(known)}."
            raise Refused("unknown-column", f"there is no column `{name[:80]}`", hint)
    refused = sorted({name for name in compared if name in hidden})
    if refused:
        raise not_compared(refused, "picking or ordering rows by it")
    condition = _filter(body, data.schema)
    wanted = list(body.columns) or known
    if body.order is None and not hidden:
        table = data.head(body.limit, filter=condition, columns=wanted)
        return wanted, [list(map(plain, row.values())) for row in table.to_pylist()]
    if data.count_rows(filter=condition) > ORDERED_MOST:
        raise Refused("view-query", f"more than {ORDERED_MOST:,} rows to put in order", "Add conditions.")
    both = list(dict.fromkeys([*wanted, *([body.order] if body.order else [])]))
    table = data.to_table(filter=condition, columns=both)
    if hidden:
        # A file has its rows in the order of its key: what is hidden must not show by where a row stands. So they are
        # put in an order that tells nothing of them, and is the same each time.
        texts = [masks.pseudonym(json_text(list(map(plain, row.values()))), "row") for row in table.to_pylist()]
        table = table.take(sorted(range(len(texts)), key=texts.__getitem__))
    if body.order is not None:
        table = table.sort_by([(body.order, "descending" if body.desc else "ascending")])
    flow = {name: hidden.get(name, Flow.CLEAR) for name in wanted}
    rows = table.slice(0, body.limit).select(wanted).to_pylist()
    return wanted, [[masks.value(flow[name], plain(value)) for name, value in row.items()] for row in rows]


def _filter(body: Query, schema: pa.Schema) -> ds.Expression | None:
    import pyarrow as pa  # noqa: PLC0415 - takes longer to import than all the rest
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    found: Any = None
    for each in body.where:
        column = pc.field(each.column)
        if each.value is None:
            one = column.is_null() if each.op == "==" else column.is_valid()
        else:
            kind = schema.field(each.column).type  # JSON has no word for a date or a time
            is_moment = pa.types.is_temporal(kind) and isinstance(each.value, str)
            one = OPERATORS[each.op](column, pa.scalar(each.value).cast(kind) if is_moment else each.value)
        found = one if found is None else found & one
    return found


# ---------------------------------------------------------------- versions


@router.get("/views/{name}", responses=answers_with(schemas.ViewWhole))
def view(context: Reading, name: ViewName) -> Response:
    """A view, and every version of it that is kept, the newest first."""
    settings = context.settings
    found = show(settings, name, context.app_state.log)
    store = ViewStore(settings.views.store, name)
    kept = [store.manifest(version) for version in reversed(found.versions)]
    versions = [fields_of(schemas.ViewVersion, each, made=each.made_ms) for each in kept]
    return answered({**view_data(context, found), "kept": versions})


@router.get("/views/{name}/{key:path}", responses=answers_with(schemas.ServedRowShown))
def row(context: Reading, name: ViewName, key: ViewKey, more: MoreOfKey = ()) -> Response:
    """The row of a key, of a view that is served. Of a key of several columns, `?key=` has the others in order."""
    app_state, masks = context.app_state, context.masks
    served, texts = app_state.served_views, [key, *more]
    if masks.is_on:
        manifest = served.manifest(name)
        flows = flows_of_view(app_state, manifest)
        hidden = {column: flow for column in manifest.serving["key"] if (flow := flows[column]) is not Flow.CLEAR}
        given = dict(zip(manifest.serving["key"], texts, strict=False))
        refused = [
            column for column, flow in hidden.items() if flow is not Flow.OWN or not is_alias(given.get(column, ""))
        ]
        if refused:
            raise not_compared(refused, "looking for a value of it")
    if app_state.lineage.any:
        texts = [real_key(app_state, masks, text) if is_alias(text) else text for text in texts]
    found = served.get(name, texts)
    if not masks.is_on:
        return answered(found.to_json())
    flows = flows_of_view(app_state, found.manifest)  # of this row, whatever is published meanwhile
    return answered(found.to_json(lambda column, value: masks.value(flows[column], value)))


@router.post("/views/{name}/rollback", responses=answers_with(schemas.ViewRolledBack))
def rollback(context: Operating, name: ViewName, body: RollingBackView) -> Response:
    """Show an earlier version again; without `to`, the one before. Nothing is deleted."""
    before = show(context.settings, name).manifest
    made = roll_back(context.settings, name, body.to)
    detail = {"view": name, "from": None if before is None else before.version, "to": made.version}
    context.record("view rolled back", detail)
    return answered({"view": name, "version": made.version, "rows": made.rows, "made": made.made_ms})


@router.post("/views/{name}/refresh", status_code=202, responses=answers_with(schemas.JobBegun, 202))
def refresh(context: Operating, name: ViewName, body: BuildViewBody) -> Response:
    """Make a new version, as a job: GET /jobs/JOB tells how far it is, and then what was made."""
    app_state = context.app_state
    wanted, refused = makeable(context.settings, [name])  # told before Spark starts
    if refused:
        raise refused[0]

    def work(on_progress: OnProgress) -> Any:
        if not _SPARK.acquire(blocking=False):
            raise Refused("view-busy", "another view is being made here", "Wait for it to end, and try again.")
        try:
            return _build(app_state, wanted, on_progress, rebuild=body.rebuild)
        finally:
            _SPARK.release()

    job = app_state.jobs.start("view", context.name, work)
    context.record("view refreshed", {"view": name, "rebuild": body.rebuild})
    return answered({"job": job.number}, 202)


def _build(app_state: AppState, views: Sequence[View], on_progress: OnProgress, *, rebuild: bool) -> dict[str, Any]:
    from samovar.changelog.spark.progress import JobProgress  # noqa: PLC0415 - with Spark only
    from samovar.service.spark.session import starting_for  # noqa: PLC0415 - as above

    def progress(found: JobProgress) -> None:
        done, total = (found.rows, found.total) if found.total else (found.tasks_done, found.tasks)
        on_progress(min(done / total, 0.99) if total else 0.0, found.rate)

    with starting_for(app_state.settings, "samovar views") as start:
        (made,) = (commands.rebuild if rebuild else commands.refresh)(
            app_state.settings, app_state.log, start.ready(), views, progress
        )
    if isinstance(made, Refused):
        raise made
    manifest = made.manifest
    version = None if manifest is None else {"version": manifest.version, "rows": manifest.rows, "kind": manifest.kind}
    return {"view": made.view.name, "seconds": round(made.seconds, 3), "made": version, "notes": list(made.notes)}
