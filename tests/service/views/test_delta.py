"""Versions of views as commits of a Delta table, without Spark: what is published is written here as Spark would."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from samovar.common.errors import Refused
from samovar.service.views.delta import LOG, NOTE, OpenTable, newest_note, table_schema
from samovar.service.views.store import DeltaRows, ViewManifest, ViewStore

Rows = Mapping[str | None, list[int]]  # by partition
NULL = "__HIVE_DEFAULT_PARTITION__"


def columns(*more: tuple[str, str]) -> dict[str, Any]:
    fields = [("day", "date"), ("n", "long"), *more]
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def publish(
    store: ViewStore, rows: Rows, *, delta: bool = True, only: bool = False, keep: int = 3, **changes: Any
) -> ViewManifest:
    """A version with all these rows, or with other ones in place of these partitions."""
    with store.writing():
        base, version = store.current_manifest(), store.next_version()
        part = store.being_made(version)
        for day, values in rows.items():
            folder = part / f"day={NULL if day is None else day}"
            if values:
                folder.mkdir(parents=True)
                pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), folder / f"part-{version}.parquet")
        part.mkdir(parents=True, exist_ok=True)
        if only and not delta and base is not None:
            store.keep_partitions(base.version, part, {f"day={NULL if day is None else day}" for day in rows})
        manifest = ViewManifest(
            view=store.name, version=version, digest="d", made_ms=version, kind="incremental" if only else "full",
            rows=0, sources={"alerts": {"a/0": (0, version)}}, rules={"r": "v1"}, partitioning=("day",),
            columns={"day": "date", "n": "bigint"},
        )  # fmt: skip
        table = {"schema": columns(), "partitioning": ("day",), "only": tuple(rows) if only else None, **changes}
        return store.publish(manifest, keep, DeltaRows(**table) if delta else None)


def rows_of(store: ViewStore, version: int | None = None) -> list[tuple[str | None, int]]:
    """A version's rows in order, days as text."""
    data = store.rows(store.version_at(version))
    if "n" not in data.schema.names:
        return []
    found = data.to_table(columns=["day", "n"]).to_pylist()
    return sorted(((None if row["day"] is None else str(row["day"]), row["n"]) for row in found), key=repr)


# ---------------------------------------------------------------- the same as Parquet


DAYS = (None, "2026-01-05", "2026-01-06", "2026-01-07")


def steps_of(seed: int) -> list[tuple[str, Rows]]:
    """Refreshes of all and of some partitions, late ones among them, going back, and what others do with the table."""
    rng = random.Random(seed)
    steps: list[tuple[str, Rows]] = []
    for _ in range(8):
        kind = rng.choice(("full", "late", "late", "late", "back", "foreign"))
        days = rng.sample(DAYS, rng.randint(1, 3))
        steps.append((kind, {day: [rng.randint(-5, 5) for _ in range(rng.randint(1, 3))] for day in days}))
    return steps


@pytest.mark.parametrize("seed", range(12))
def test_a_table_has_the_rows_of_parquet_at_every_kept_version_whatever_was_refreshed(
    tmp_path: Path, seed: int
) -> None:
    plain, table = ViewStore(tmp_path / "plain", "v"), ViewStore(tmp_path / "delta", "v")
    for kind, rows in steps_of(seed):
        if kind == "full" or (kind == "late" and plain.current() is None):
            for store in (plain, table):
                publish(store, rows, delta=store is table)
        elif kind == "late":
            for store in (plain, table):
                publish(store, rows, delta=store is table, only=True)
        elif kind == "back" and len(plain.versions()) > 1 and plain.current() != plain.versions()[0]:
            for store in (plain, table):
                with store.writing():
                    store.roll_back()
        elif kind == "foreign" and table.table.exists():
            DeltaTable(str(table.table)).optimize.compact()
        if plain.current() is None:
            continue
        assert table.versions() == plain.versions()
        assert table.current() == plain.current()
        with table.writing():
            table.maintain(retain_h=0)  # nothing that is kept may go
        for version in plain.versions():
            assert rows_of(table, version) == rows_of(plain, version)
            assert table.manifest(version).rows == len(rows_of(plain, version))
        assert rows_of(table) == rows_of(plain)
        newest = DeltaTable(str(table.table)).to_pyarrow_table().column("n").to_pylist()
        assert sorted(newest) == sorted(n for _, n in rows_of(plain))
    if table.table.exists():
        wanted = {path for each in table.versions() for path in paths_at(table, table.manifest(each).table)}
        there = {str(path) for path in table.table.rglob("*.parquet") if LOG not in path.parts}
        assert there == wanted | set(paths_at(table, None))  # and nothing else is left


def paths_at(store: ViewStore, version: int | None) -> list[str]:
    return [uri.removeprefix("file://") for uri in DeltaTable(str(store.table), version).file_uris()]


def test_a_commit_says_offsets_rules_and_version(tmp_path: Path) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]})
    manifest = publish(store, {"2026-01-06": [2, 3]}, only=True)
    assert (manifest.table, manifest.rows) == (1, 3)
    table = DeltaTable(str(store.table))
    note = json.loads(table.history(1)[0][NOTE])
    assert note == {
        "samovar": 1, "view": "v", "version": 2, "kind": "incremental", "sources": {"alerts": {"a/0": [0, 2]}},
        "rules": {"r": "v1"},
    }  # fmt: skip
    assert table.transaction_version(store.application) == 2
    commit = (store.table / LOG / f"{1:020}.json").read_text()
    assert commit.count('"add"') == 1  # of the other partition, nothing was written
    assert '"remove"' not in commit


def test_files_are_left_out_by_their_bounds(tmp_path: Path) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1, 7], "2026-01-06": [9]})
    found = pa.table(DeltaTable(str(store.table)).get_add_actions(flatten=True)).to_pylist()
    assert sorted((row["min.n"], row["max.n"], row["null_count.n"]) for row in found) == [(1, 7, 0), (9, 9, 0)]


# ---------------------------------------------------------------- kills


PUBLISH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_delta import publish
from samovar.service.views.store import ViewStore

store = ViewStore(Path(sys.argv[1]), "v")
publish(store, {"2026-01-05": [store.next_version()]})
"""


def publish_apart(folder: Path, kill: str = "") -> int:
    environment = {**os.environ, "SAMOVAR_KILL": kill}
    command = [sys.executable, "-c", PUBLISH, str(folder), str(Path(__file__).parent)]
    return subprocess.run(command, env=environment, check=False).returncode


@pytest.mark.parametrize(
    ("point", "seen"),
    [("publish.before", 1), ("publish.between", 1), ("publish.committed", 2), ("publish.after", 2)],
)
@pytest.mark.parametrize("first", [False, True])
def test_killed_at_any_moment_all_readers_see_the_same_whole_version(
    tmp_path: Path, point: str, seen: int, first: bool
) -> None:
    if not first:
        assert publish_apart(tmp_path) == 0
    seen -= first
    assert publish_apart(tmp_path, f"{point}:1") == -signal.SIGKILL
    store = ViewStore(tmp_path, "v")
    assert store.current() == (seen or None)
    assert store.versions() == list(range(1, seen + 1))
    if seen:
        assert rows_of(store) == [("2026-01-05", seen)]
        assert DeltaTable(str(store.table)).to_pyarrow_table().column("n").to_pylist() == [seen]
    assert publish_apart(tmp_path) == 0
    manifest = store.current_manifest()
    assert manifest is not None
    assert manifest.version == store.current() == max(store.versions())
    assert rows_of(store) == [("2026-01-05", manifest.version)]
    assert store.pointer.readlink().name == f"{manifest.version:06}"
    assert not list(store.folder.rglob("*.part"))


# ---------------------------------------------------------------- others who write


def test_a_commit_that_came_first_is_looked_at_and_built_upon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]})
    publish(store, {"2026-01-06": [2]}, only=True)
    real, times = OpenTable.replace, []

    def replace(self: OpenTable, base: int | None, *rest: Any) -> int:
        times.append(base)
        if len(times) == 1:  # a vacuum of Spark comes between the look and the commit
            DeltaTable(self.uri).alter.set_table_properties({"delta.checkpointInterval": "50"})
        return real(self, base, *rest)

    monkeypatch.setattr(OpenTable, "replace", replace)
    manifest = publish(store, {"2026-01-05": [5]}, only=True)
    assert times == [1, 2]
    assert manifest.table == 3
    assert rows_of(store) == [("2026-01-05", 5), ("2026-01-06", 2)]


def test_another_builder_who_was_first_is_no_reason_to_publish_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]})
    real = OpenTable.replace
    met: list[int | None] = []

    def replace(self: OpenTable, base: int | None, *rest: Any) -> int:
        if not met:  # on a disk that locks nothing
            met.append(base)
            real(self, base, *rest)
        return real(self, base, *rest)

    monkeypatch.setattr(OpenTable, "replace", replace)
    with pytest.raises(Refused, match="view-busy"):
        publish(store, {"2026-01-05": [2]})
    assert DeltaTable(str(store.table)).version() == 1


# ---------------------------------------------------------------- columns


def test_a_new_column_evolves_the_table_and_old_versions_stay_as_they_were(tmp_path: Path) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]})
    publish(store, {"2026-01-05": [1]}, schema=columns(("more", "string")))
    assert [each.name for each in store.rows(store.version_at()).schema] == ["day", "n", "more"]
    assert [each.name for each in store.rows(store.version_at(1)).schema] == ["day", "n"]
    assert rows_of(store, 1) == rows_of(store, 2)


@pytest.mark.parametrize(
    ("schema", "partitioning", "said"),
    [
        ({"type": "struct", "fields": columns()["fields"][:1]}, ("day",), "`n` is gone"),
        (json.loads(json.dumps(columns()).replace("long", "double")), ("day",), "`n` is long, and would be double"),
        (columns(), (), "partitioning is ['day'], and would be []"),
    ],
)
def test_what_breaks_readers_is_refused_and_can_be_insisted_on(
    tmp_path: Path, schema: Any, partitioning: tuple[str, ...], said: str
) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]})
    rows = DeltaRows(schema=schema, partitioning=partitioning, only=None)
    with pytest.raises(Refused) as refused:
        store.check(rows)
    assert refused.value.code == "view-schema"
    assert said in refused.value.what
    assert "--overwrite-schema" in refused.value.hint
    store.check(DeltaRows(schema=schema, partitioning=partitioning, only=None, any_schema=True))


def test_a_name_that_delta_lake_cannot_have_is_refused() -> None:
    text = json.dumps(columns(("count(1)", "long")))
    with pytest.raises(Refused, match="table-column"):
        table_schema(text)


# ---------------------------------------------------------------- formats and expiry


def test_a_view_changes_its_format_and_back(tmp_path: Path) -> None:
    store = ViewStore(tmp_path, "v")
    publish(store, {"2026-01-05": [1]}, delta=False)
    publish(store, {"2026-01-05": [2]})
    assert [rows_of(store, version)[0][1] for version in (1, 2)] == [1, 2]
    with pytest.raises(Refused, match="Parquet"), store.writing():
        store.roll_back(1)
    for number in (3, 4):
        publish(store, {"2026-01-05": [number]}, delta=False)
    assert store.table.exists()  # version 2 can be gone back to
    publish(store, {"2026-01-05": [5]}, delta=False)
    assert not store.table.exists()
    assert rows_of(store) == [("2026-01-05", 5)]


def test_the_log_begins_at_the_oldest_kept_version_and_a_replaced_file_stays_an_hour(tmp_path: Path) -> None:
    store = ViewStore(tmp_path, "v")
    for number in range(1, 8):
        publish(store, {"2026-01-05": [number]})
    with store.writing():
        assert store.maintain() == (0, 0)  # somebody may read them
        merged, deleted = store.maintain(retain_h=0)
    assert (merged, deleted) == (0, 4)
    oldest = store.manifest(5).table
    assert min(int(path.name[:20]) for path in (store.table / LOG).glob("[0-9]*")) == oldest
    assert [rows_of(store, version) for version in (5, 6, 7)] == [[("2026-01-05", n)] for n in (5, 6, 7)]
    with pytest.raises(Refused, match="version 4"):
        store.version_at(4)
    assert store.version_at(as_of_ms=6).version == 6
    with pytest.raises(Refused, match="no version of that time"):
        store.version_at(as_of_ms=4)
    found = newest_note(store.table)
    assert found is not None
    assert publish(store, {"2026-01-05": [8]}).version == 8


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samovar.service.views.delta.find_spec", lambda name: None if name == "deltalake" else name)
    with pytest.raises(Refused, match="pip install"):
        OpenTable(str(tmp_path))
