"""Views without Spark: their files, their versions, and the one pointer that readers follow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.views.commands import list_views
from samovar.service.views.files import view_named
from samovar.service.views.store import ViewManifest, ViewStore
from tests.support.http_server import served
from tests.support.small_service import START, Service, make, many, run
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
from samovar.service.views.files import view_named
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


def test_a_bad_file_hides_no_other_view(service: Service) -> None:
    put(service, CARDS)
    (service.config.parent / "views" / "a.yml").write_text("view: a b\nsql: select 1\n")
    (service.config.parent / "views" / "b.yml").write_bytes(b"view: \xff\n")
    done = run("views", "list", service.config)
    assert (done.exit_code, done.stdout) == (1, "cards  full, never made\n")
    assert "a.yml:1:" in done.stderr
    assert "b.yml" in done.stderr
    assert views(service, "show", "cards").startswith("cards: What every card spent\n")
    assert "a.yml:1:" in views(service, "show", "a", code=2)  # it may be this one's file
    with served(service) as site:
        answer = site.get("/views")
    assert [each["view"] for each in answer["views"]] == ["cards"]
    assert "`a b` cannot be a view's name" in answer["problems"][0]


def test_of_two_files_with_one_name_the_second_is_refused(service: Service) -> None:
    put(service, CARDS)
    (service.config.parent / "views" / "more.yml").write_text(CARDS.replace("sum(amount)", "max(amount)").lstrip())
    found, bad = list_views(service.settings)
    assert ["sum(amount)" in each.view.sql for each in found] == [True]
    assert "another file has a view `cards` too" in str(bad)


def test_a_busy_view_is_told_before_spark_starts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was to start")

    monkeypatch.setattr("samovar.service.cli.views.starting_for", no_spark)
    put(service, CARDS)
    with ViewStore(service.settings.views.store, "cards").alone():
        assert views(service, "refresh", code=1).startswith("view-busy: another process is making the view cards")
        with served(service) as site:
            assert site.post("/views/cards/refresh", {}, 409)["code"] == "view-busy"


# ---------------------------------------------------------------- how far behind


def test_a_listing_tells_what_came_since_a_version(service: Service) -> None:
    put(service, CARDS, CARDS.replace("cards", "labelled").replace("from purchase", "from purchase, labels"))
    service.produce(many(10))
    ends = ends_of(service, "purchase")
    publish_version(service, "cards", {"purchase": ends})
    publish_version(service, "labelled", {"purchase": ends, "labels": {}})
    assert [line.endswith("; up to date") for line in views(service, "list").splitlines()] == [True, True]
    service.produce(many(7, start_s=100))
    with service.log() as log:
        read = {TopicPartition("purchase", number): ends[f"purchase/{number}"][1] for number in (0, 1)}
        news = [
            records
            for at, end in read.items()
            for records in PartitionCursor(log, at, end).read_to(log.bounds([at])[at].end)
        ]
        first = min(int(records.times[0]) for records in news)
    cards, labelled = json.loads(views(service, "list", "--json"))
    assert cards["lag"] == labelled["lag"] == 7
    assert 0 < cards["behind_s"] == pytest.approx(time.time() - first / 1000, abs=60)
    assert f"7 records behind, the first of {iso_time(first)}" in views(service, "show", "cards")
    with service.log() as log:
        log.create([TopicSpec("s-labels", 1)])
        log.append([Append(topic="s-labels", records=[(b"a", b"{}")])])
    with served(service) as site:
        assert [each["lag"] for each in site.get("/views")["views"]] == [7, 8]


def ends_of(service: Service, topic: str) -> dict[str, tuple[int, int]]:
    with service.log() as log:
        places = [TopicPartition(topic, number) for number in range(log.topics([topic])[topic].partitions)]
        return {f"{at.topic}/{at.partition}": (begin, end) for at, (begin, end) in log.bounds(places).items()}


def publish_version(service: Service, name: str, sources: dict[str, dict[str, tuple[int, int]]]) -> None:
    """As a job on Spark would, with no rows."""
    store = ViewStore(service.settings.views.store, name)
    manifest = ViewManifest(
        view=name,
        version=1,
        digest=view_named(service.settings, name).digest,
        made_ms=START,
        kind="full",
        rows=0,
        sources=sources,
        rules={},
        columns={},
    )
    with store.writing():
        store.being_made(1).mkdir()
        store.publish(manifest, 3)
