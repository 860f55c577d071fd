"""/views: what is published of the materialized views, and their rows, picked and ordered.

No SQL is taken here: Spark's reads any file that it is asked for. `samovar views query` takes it, from whoever may run
commands.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path
from fastapi.responses import Response
from pydantic import Field

from samovar.changelog.errors import Refused
from samovar.patterns.nearest import did_you_mean
from samovar.service.access_masks import Masks
from samovar.service.http_answers import answers_with
from samovar.service.http_answers_state import ViewRows, ViewsShown
from samovar.service.http_asking import Body, Reading, answered
from samovar.service.views import Listed, list_views, path_of, plain, show

if TYPE_CHECKING:
    import pyarrow.dataset as ds

router = APIRouter(tags=["views"])

ROWS_MOST = 1_000
ORDERED_MOST = 200_000  # rows that are put in order; more are refused
PLAIN_COLUMNS = ("rule", "label", "severity", "title", "version")
ViewName = Annotated[str, Path(max_length=200)]
Value = str | int | float | bool | None


class Where(Body):
    """A condition on one column."""

    column: str = Field(max_length=200)
    op: Literal["==", "!=", "<", "<=", ">", ">="] = "=="
    value: Value = None


class Query(Body):
    """Which rows of a view: those for which all conditions hold, of some columns, in an order."""

    where: tuple[Where, ...] = Field((), max_length=20)
    columns: tuple[str, ...] = Field((), max_length=100)
    order: str | None = Field(None, max_length=200)
    desc: bool = False
    limit: int = Field(100, ge=1, le=ROWS_MOST)


@router.get("/views", responses=answers_with(ViewsShown))
def views(asking: Reading) -> Response:
    """All views, and what is published of each."""
    return answered({"views": [told(each) for each in list_views(asking.world.settings)]})


@router.post("/views/{name}/query", responses=answers_with(ViewRows))
def query(asking: Reading, name: ViewName, body: Query) -> Response:
    """Rows of a view as it is published now."""
    settings = asking.world.settings
    found = show(settings, name)
    path = path_of(settings, name)
    try:
        columns, rows = _rows(str(path), body)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        what = f"the view `{name}` cannot be asked for this"
        hint = "Compare a column with a value of its own type; GET /api/v1/views lists columns and types."
        raise Refused("view-query", what, hint, str(error).splitlines()[0][:300]) from error
    return answered({"columns": columns, "rows": _masked(asking.masks, found, columns, rows)})


def told(view: Listed) -> dict[str, Any]:
    return {name: value for name, value in view.to_json().items() if name != "path"}


def _rows(path: str, body: Query) -> tuple[list[str], list[list[Any]]]:
    import pyarrow.dataset as ds  # noqa: PLC0415 - takes longer to import than all the rest

    data = ds.dataset(path, format="parquet", partitioning="hive")
    known = [name for name in data.schema.names if not name.startswith("_")]
    for name in [*body.columns, *(each.column for each in body.where), *([body.order] if body.order else [])]:
        if name not in known:
            hint = did_you_mean(name, known) or f"Columns are {', '.join(known)}."
            raise Refused("unknown-column", f"there is no column `{name[:80]}`", hint)
    picked = _filter(body)
    wanted = list(body.columns) or known
    if body.order is None:
        table = data.head(body.limit, filter=picked, columns=wanted)
    else:
        if data.count_rows(filter=picked) > ORDERED_MOST:
            raise Refused("view-query", f"more than {ORDERED_MOST:,} rows to put in order", "Add conditions.")
        both = list(dict.fromkeys([*wanted, body.order]))
        direction = "descending" if body.desc else "ascending"
        whole = data.to_table(filter=picked, columns=both).sort_by([(body.order, direction)])
        table = whole.slice(0, body.limit).select(wanted)
    return wanted, [list(map(plain, row.values())) for row in table.to_pylist()]


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


def _masked(masks: Masks, view: Listed, columns: list[str], rows: list[list[Any]]) -> list[list[Any]]:
    """A column may hold what any marked field says: where the view names one, or a key, its texts are pseudonyms."""
    if not masks.is_on:
        return rows
    names = {path.rpartition(".")[2] for path in masks.paths} | {"key"}
    words = set(re.findall(r"\w+", view.view.sql or "")) | set(columns)
    if not (names & words) and "*" not in (view.view.sql or "*"):
        return rows
    hides = [name not in PLAIN_COLUMNS for name in columns]
    return [[_alias(masks, value) if hide else value for hide, value in zip(hides, row, strict=True)] for row in rows]


def _alias(masks: Masks, value: Any) -> Any:
    return masks.alias(value) if isinstance(value, str) else value
