"""Views without Spark: their files, their versions, and the one pointer that readers follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samovar.common.errors import Refused
from samovar.service.views.store import ViewStore
from tests.support.small_service import Service, make
from tests.support.views import CARDS, put, views


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    return made


# ---------------------------------------------------------------- versions


PUBLISH = """
import sys
import uuid
from pathlib import Path
from samovar.service.views.store import ViewManifest, ViewStore

store = ViewStore(Path(sys.argv[1]), "v")
with store.writing():
    version = store.next_version()
    part = store.being_made(version)
    part.mkdir()
    (part / f"part-{version}.parquet").write_bytes(b"x" * version)
    made = {"view": "v", "digest": "d", "made_ms": 0, "kind": "full", "sources": {}, "rules": {}, "columns": {}}
    store.publish(ViewManifest(version=version, rows=version, **made), 3)
"""


def publish(folder: Path, kill: str = "") -> int:
    environment = {**os.environ, "SAMOVAR_KILL": kill}
    return subprocess.run([sys.executable, "-c", PUBLISH, str(folder)], env=environment, check=False).returncode


@pytest.mark.parametrize(("point", "seen"), [("publish.before", 1), ("publish.between", 1), ("publish.after", 2)])
def test_killed_in_the_middle_readers_see_a_whole_version_and_it_can_run_again(
    tmp_path: Path, point: str, seen: int
) -> None:
    assert publish(tmp_path) == 0
    assert publish(tmp_path, f"{point}:1") == -signal.SIGKILL
    store = ViewStore(tmp_path, "v")
    assert store.being_made(3) != ViewStore(tmp_path, "v").being_made(3)  # a killed job's Java may write on
    assert store.current() == seen
    assert [path.name for path in (store.folder / "current").glob("*.parquet")] == [f"part-{seen}.parquet"]
    assert publish(tmp_path) == 0
    manifest = store.current_manifest()
    assert manifest is not None
    assert manifest.version == store.current() == max(store.versions())
    assert not list(store.folder.rglob("*.part"))


def test_so_many_versions_are_kept_and_the_one_that_is_shown_always(tmp_path: Path) -> None:
    for _ in range(5):
        assert publish(tmp_path) == 0
    store = ViewStore(tmp_path, "v")
    assert store.versions() == [3, 4, 5]
    assert store.roll_back().version == 4
    assert store.roll_back().version == store.current() == 3
    with pytest.raises(Refused, match="there is no version before it"):
        store.roll_back()
    assert store.roll_back(5).version == 5
    with pytest.raises(Refused, match="there is no version 1"):
        store.roll_back(1)


def test_two_at_once_are_refused(service: Service) -> None:
    store = ViewStore(service.settings.views.store, "cards")
    with store.writing(), pytest.raises(Refused, match="view-busy"), ViewStore(store.store, "cards").writing():
        pass


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("view: a b\nsql: select 1\n", "`a b` cannot be a view's name"),
        ("view: a\n", "`sql` is missing"),
        ("view: a\nsql: select 1\nrefersh: full\n", "did you mean `refresh`?"),
        ("view: a\nsql: select 1\nrefresh: sometimes\n", "expected: full or incremental"),
        ("view: a\nsql: select 1\nrefresh: incremental\n", "an incremental view needs one column in `partitioning`"),
        ("view: a\nsql: select 1\npartition_of: {alerts: day}\n", "`partition_of` is for `refresh: incremental`"),
        ("- view\n", "a view is a map"),
    ],
)
def test_bad_files_are_refused_before_spark_starts(service: Service, text: str, said: str) -> None:
    (service.config.parent / "views" / "a.yml").write_text(text)
    told = views(service, "rebuild", code=2)
    assert said in told
    assert "a.yml:" in told


def test_an_unknown_view_and_none_at_all(service: Service) -> None:
    assert views(service, "rebuild", code=2).startswith("unknown-view: there is no view in ")
    put(service, CARDS)
    assert "did you mean `cards`?" in views(service, "show", "crads", code=2)
    assert views(service, "list") == "cards  full, never made\n"
