"""/views: what is published of the materialized views, and their rows, picked and ordered.

No SQL is taken here: Spark's reads any file that it is asked for. `samovar views query` takes it, from anyone who may
run commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.http.masking.views import flows_of_view
from samovar.service.http.request import Body, Reading, RequestContext, answered, json_text
from samovar.service.http.schemas.alerts import answers_with
from samovar.service.http.schemas.state import ViewRows, ViewsShown
from samovar.service.masking.fields import Masks, not_compared
from samovar.service.masking.lineage import Flow
from samovar.service.views.commands import ViewListing, list_views, path_of, plain, show
from samovar.service.views.store import MANIFEST, ViewManifest

if TYPE_CHECKING:
    import pyarrow.dataset as ds

router = APIRouter(tags=["views"])

ROWS_MOST = 1_000
ORDERED_MOST = 200_000  # rows that are put in order; more are refused
ViewName = Annotated[str, Path(max_length=200)]
Value = str | int | float | bool | None


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


@router.get("/views", responses=answers_with(ViewsShown))
def views(context: Reading) -> Response:
    """All views, and what is published of each."""
    return answered({"views": [told(context, each) for each in list_views(context.app_state.settings)]})


@router.post("/views/{name}/query", responses=answers_with(ViewRows))
def query(context: Reading, name: ViewName, body: Query) -> Response:
    """Rows of a view as it is published now."""
    settings = context.app_state.settings
    show(settings, name)  # says what is near
    path = path_of(settings, name)
    manifest = ViewManifest.unpacked((path / MANIFEST).read_bytes())  # of these rows, whatever is published meanwhile
    flows = flows_of_view(context.app_state, manifest) if context.masks.is_on else None
    try:
        columns, rows = _rows(str(path), body, flows, context.masks)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        what = f"the view `{name}` cannot be asked for this"
        hint = "Compare a column with a value of its own type; GET /api/v1/views lists columns and types."
        raise Refused("view-query", what, hint, "" if flows else str(error).splitlines()[0][:300]) from error
    return answered({"columns": columns, "rows": rows})


def told(context: RequestContext, view: ViewListing) -> dict[str, Any]:
    shown = {name: value for name, value in view.to_json().items() if name != "path"}
    return {**shown, "hidden": sorted(hidden_columns(context, view))}


def hidden_columns(context: RequestContext, view: ViewListing) -> dict[str, Flow]:
    """Columns that hold something marked, and what."""
    if view.manifest is None or not context.masks.is_on:
        return {}
    flows = flows_of_view(context.app_state, view.manifest)
    return {name: flow for name, flow in flows.items() if flow is not Flow.CLEAR}


def _rows(path: str, body: Query, flows: Mapping[str, Flow] | None, masks: Masks) -> tuple[list[str], list[list[Any]]]:
    import pyarrow.dataset as ds  # noqa: PLC0415 - takes longer to import than all the rest

    data = ds.dataset(path, format="parquet", partitioning="hive")
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
    picked = _filter(body)
    wanted = list(body.columns) or known
    both = list(dict.fromkeys([*wanted, *([body.order] if body.order else [])]))
    if body.order is None and not hidden:
        table = data.head(body.limit, filter=picked, columns=wanted)
        return wanted, [list(map(plain, row.values())) for row in table.to_pylist()]
    if data.count_rows(filter=picked) > ORDERED_MOST:
        raise Refused("view-query", f"more than {ORDERED_MOST:,} rows to put in order", "Add conditions.")
    table = data.to_table(filter=picked, columns=both)
    # A file has its rows in the order of its key: what is hidden must not show by where a row stands.
    if hidden:
        table = table.take(_shuffled(table, masks))
    if body.order is not None:
        table = table.sort_by([(body.order, "descending" if body.desc else "ascending")])
    rows = table.slice(0, body.limit).select(wanted).to_pylist()
    return wanted, [
        [masks.value(hidden.get(name, Flow.CLEAR), plain(value)) for name, value in row.items()] for row in rows
    ]


def _shuffled(table: Any, masks: Masks) -> list[int]:
    """Rows in an order that tells nothing of them, and is the same each time."""
    texts = [masks.pseudonym(json_text(list(map(plain, row.values()))), "row") for row in table.to_pylist()]
    return sorted(range(len(texts)), key=texts.__getitem__)


def _filter(body: Query) -> ds.Expression | None:
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    found: Any = None
    for each in body.where:
        column = pc.field(each.column)
        if each.value is None:
            one = column.is_null() if each.op == "==" else column.is_valid()
        else:
            compare = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
            one = getattr(column, compare[each.op])(each.value)
        found = one if found is None else found & one
    return found
