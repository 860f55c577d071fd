"""The tables of a served view: each version also as sorted files, in which any node finds a row by its key.

    STORE/NAME/versions/000007/_serving/*.sst    part of the version: shown with it, and gone with it

What of an aggregate a later row needs stands behind the row's own columns: samovar.service.views.live_sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samovar.changelog.spark import views
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.sorted_tables import TableFile, write_sorted
from samovar.common.folders import link_or_copy, make_private
from samovar.service.views.files import View, bad_sql
from samovar.service.views.live import append_only
from samovar.service.views.live_sql import NotLive, live_query, splice, state_columns
from samovar.service.views.served_rows import FOLDER, FORMAT, RowCodec, is_key_type
from samovar.service.views.sources import Sources


class TableBuild:
    """The tables of one version on their way. Of a view that is not served, there are none."""

    def __init__(self, session: OpenSession, view: View, sources: Sources, used: list[str]) -> None:
        self.session, self.view = session, view
        self.sql, self.reason = view.sql, ""
        self.states: list[str] = []
        self.files: list[TableFile] = []
        try:
            query = live_query(view.sql, view.key, append_only(sources, used)) if view.serve else None
        except NotLive as reason:
            query, self.reason = None, str(reason)
        if query is not None:
            self.sql, self.states = splice(view.sql, query), list(state_columns(query))

    @contextmanager
    def whole(self, frame: Any) -> Iterator[Any]:
        """The rows with the states of their aggregates, computed once for the Parquet and for the tables."""
        if not self.view.serve:
            yield frame
            return
        found = (views.query(self.session, self.sql) if self.states else frame).persist()
        try:
            yield found
        finally:
            found.unpersist()

    def write(self, frame: Any, part: Path, rows: int) -> None:
        """Write rows with their states."""
        if not self.view.serve:
            return
        columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for name in self.view.key:
            if not is_key_type(columns[name]):
                hint = "A key is of text, numbers, booleans, dates and timestamps."
                raise bad_sql(self.view, "view-sql", f"`{name}` cannot be in a key: {columns[name]}", 0, 0, hint)
        place = self.view.partitioning[0] if self.view.refresh == "incremental" else None
        codec = RowCodec(columns, self.view.key)
        self.files = write_sorted(self.session, self.view.name, frame, codec.pairs, part / FOLDER, place, rows)

    def keep(self, base: Path, held: Mapping[str, Any], part: Path, without: set[str]) -> None:
        """Take the tables of a base version over, but for those of some partitions."""
        for name, (place, rows, sha256) in held.get("files", {}).items():
            if views.folder_of(self.session, self.view.partitioning[0], place) not in without:
                make_private(part / FOLDER)
                link_or_copy(base / FOLDER / name, part / FOLDER / name)
                self.files.append(TableFile(name, place, rows, sha256))

    def manifest(self) -> dict[str, Any]:
        """What the version's manifest says of them."""
        if not self.view.serve:
            return {}
        return {
            "format": FORMAT,
            "key": list(self.view.key),
            "sql": self.view.sql,
            "states": self.states,
            "reason": self.reason,  # for which it cannot be completed, where it cannot
            "files": {each.name: [each.place, each.rows, each.sha256] for each in self.files},
        }
