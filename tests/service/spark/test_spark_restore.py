"""`samovar restore --engine spark`: the same stores as the local engine makes, by digest, from both logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.cursors import read_all
from samovar.changelog.formats.staged import StagedTables
from samovar.changelog.log import TopicPartition
from samovar.changelog.spark.connector_log import SparkFeed
from samovar.changelog.spark.progress import Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.recovery.restore.plan import RestoreRequest, plan_restore
from samovar.service.spark.jobs import JobPart, shipped, stage
from samovar.service.topology.stores import StateLocation, digest_of, plan_for, position_of, site_of
from samovar.state.rocks import RocksStore
from tests.support.small_service import RULES, Service, is_equal, make, many, purchase, refused, restored, run, wipe


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def digests_in(found: dict[str, Any]) -> dict[int, str]:
    return {each["partition"]: each["digest"] for each in found["restored"]}


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_p2_spark_and_the_local_engine_make_the_same(spark: OpenSession, service: Service, source: str) -> None:
    """P2: by digest, and byte by byte against the changelog (`verify`); the service then goes on."""
    service.process(many(100))
    rule = service.config.parent / "other.yml"  # published, as rules are: what an executor gets knows of it
    rule.write_text(RULES["testing"].replace("maxspan=10m", "maxspan=9m"))
    assert run("rules", "publish", service.config, rule, "--yes").exit_code == 0
    service.process(many(60, start_s=400))
    before = service.digests()
    wipe(service)
    found = restored(service, "--engine", "spark", "--from", source, "--verify")
    assert digests_in(found) == before == service.digests()
    assert all(each["equal"] for each in found["verify"])
    wipe(service)
    local = restored(service, "--from", source)
    assert digests_in(local) == before
    assert [each["offset"] for each in found["restored"]] == [each["offset"] for each in local["restored"]]
    service.process(many(60, start_s=800))
    assert is_equal(service)
    assert not list(service.state.rglob("*.part"))


# ---------------------------------------------------------------- staging


def staged_at(service: Service, folder: Path, *options: object) -> dict[str, Any]:
    return restored(service, "--engine", "spark", "--staging", folder, *options)


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_staged_on_one_machine_and_taken_on_another(
    spark: OpenSession, service: Service, tmp_path: Path, source: str
) -> None:
    service.process(many(100))
    before = service.digests()
    left = tmp_path / "staging" / "main" / "0.abc.part"  # as a job that was killed leaves it
    left.mkdir(parents=True)
    found = staged_at(service, tmp_path / "staging", "--from", source)
    assert not left.exists()
    assert {each["partition"]: each["digest"] for each in found["staged"]} == before
    assert service.digests() == before
    wipe(service)
    taken = restored(service, "--ingest", tmp_path / "staging", "--verify")
    assert digests_in(taken) == before
    assert {each["from"] for each in taken["restored"]} == {"staging"}
    assert all(each["equal"] for each in taken["verify"])
    service.process(many(60, start_s=800))
    assert is_equal(service)


def test_what_came_after_staging_is_taken_too(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    service.process(many(60))
    staged_at(service, tmp_path / "staging")
    service.process(many(60, start_s=400))
    before = service.digests()
    wipe(service)
    assert digests_in(restored(service, "--ingest", tmp_path / "staging", "--partition", 1)) == {1: before[1]}
    assert digests_in(restored(service, "--ingest", tmp_path / "staging")) == before


def test_what_was_folded_before_the_service_went_on_is_refused(
    spark: OpenSession, service: Service, tmp_path: Path
) -> None:
    """The input went on: to take it would set the changelog back."""
    service.process(many(60))
    staged_at(service, tmp_path / "staging", "--from", "source")
    service.process(many(60, start_s=400))
    before = service.digests()
    assert refused(service, "--ingest", tmp_path / "staging") == "staging-unfit"
    assert service.digests() == before


def test_staged_files_that_are_not_what_was_written(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    service.process(many(60))
    before = service.digests()
    staged_at(service, tmp_path / "staging")
    place = tmp_path / "staging" / "main" / "0"
    table = place / "000001.sst"
    whole = table.read_bytes()
    table.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert refused(service, "--ingest", tmp_path / "staging") == "staging-unusable"
    table.write_bytes(whole)
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps(manifest | {"offset": 1}))
    assert refused(service, "--ingest", tmp_path / "staging") == "staging-unusable"
    shutil.rmtree(place)
    assert refused(service, "--ingest", tmp_path / "staging", "--partition", 0) == "staging-missing"
    assert refused(service, "--ingest", tmp_path / "nothing") == "staging-missing"
    assert service.digests() == before


def test_staged_for_another_service(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    service.process(many(60))
    staged_at(service, tmp_path / "staging")
    other = make(tmp_path / "o")
    other.config.write_text(other.config.read_text().replace("service: s", "service: other"))
    other.process(many(60))
    assert refused(other, "--ingest", tmp_path / "staging") == "staging-unfit"


# ---------------------------------------------------------------- to the past, and refusals


def test_a_moment_of_the_past(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    """Event time with the source, an offset of the changelog: as the local engine has it."""
    service.process(many(60))
    first = service.changelog_end(0)
    service.process(many(60, start_s=400))
    moment = purchase("c", 450, 1)["ts"]
    for number, options in enumerate(
        [("--from", "source", "--to-time", moment), ("--to-offset", first, "--partition", 0)]
    ):
        folders = [tmp_path / f"{engine}-{number}" for engine in ("local", "spark")]
        local = restored(service, "--out", folders[0], *options)
        there = restored(service, "--engine", "spark", "--out", folders[1], *options)
        assert digests_in(there) == digests_in(local)
        for folder in folders:
            done = run("state", "digest", service.config, "--store", folder, "--json")
            assert {each["partition"]: each["digest"] for each in json.loads(done.stdout)} == digests_in(local)


def test_what_does_not_go_together(service: Service, tmp_path: Path) -> None:
    service.process(many(20))
    assert refused(service, "--engine", "spark", "--from", "snapshot") == "engine-unfit"
    for options in (
        ["--engine", "flink"],
        ["--master", "local[2]"],
        ["--staging", tmp_path],
        ["--engine", "spark", "--staging", tmp_path, "--out", tmp_path],
        ["--ingest", tmp_path, "--from", "source"],
        ["--ingest", tmp_path, "--engine", "spark"],
    ):
        done = run("restore", service.config, *options)
        assert done.exit_code == 2, options
        assert "Usage" in done.stderr


def test_a_restore_that_failed_leaves_the_stores_alone(
    spark: OpenSession, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last partition's journal is cut: nothing was replaced, nothing is left."""
    service.process(many(60))
    before = service.digests()
    monkeypatch.setattr("samovar.service.spark.restore.stage", _refusing)
    assert "journal-cut" in codes_of(service)
    assert service.digests() == before
    assert not list(service.state.rglob("*.part*"))


def codes_of(service: Service) -> list[str]:
    """What a restore on Spark refused with, among the lines that say how far it was."""
    done = run("restore", service.config, "--engine", "spark")
    assert done.exit_code == 2, done.output
    return [line.split(":")[0] for line in done.stderr.splitlines()]


def _refusing(part: JobPart, tick: Ticker, feed: SparkFeed | None) -> StagedTables:
    if part.planned.partition == 1:
        raise Refused("journal-cut", "the journal begins with entry 7", "It must never lose records.")
    return stage(part, tick, feed)


def test_a_task_of_the_user_s_own(spark: OpenSession, root: Path, tmp_path: Path) -> None:
    """Its code does not travel: executors load it from the service's folder."""
    ignored = shutil.ignore_patterns(".*", "__pycache__")
    config = shutil.copytree(root / "examples" / "card-profiles", tmp_path / "p", ignore=ignored) / "service.yml"
    assert run("produce", config, "purchase", config.parent / "purchases.jsonl").exit_code == 0
    assert run("run", config, "--until-caught-up").exit_code == 0
    before = run("state", "digest", config).stdout
    done = run("restore", config, "--engine", "spark", "--from", "source")
    assert done.exit_code == 0, done.output
    assert run("state", "digest", config).stdout == before
    assert run("verify", config, "--engine", "spark").exit_code == 0


def test_p3_a_killed_executor_harms_nothing(
    spark: OpenSession, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: the job fails with a code, stores stay as they were, and it can be run again."""
    service.process(many(60))
    before = service.digests()
    left = service.state / "restore-tables.part" / "main"
    left.mkdir(parents=True)  # as a driver that was killed leaves it
    (left / "junk.sst").write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr("samovar.service.spark.restore.stage", _dying)
        assert "spark-job-failed" in codes_of(service)
    assert service.digests() == before
    assert digests_in(restored(service, "--engine", "spark")) == before
    assert not list(service.state.rglob("*.part*"))


def _dying(part: JobPart, tick: Ticker) -> StagedTables:
    made = stage(part, tick)
    if part.planned.partition == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def test_progress_as_json(spark: OpenSession, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samovar.service.spark.progress.JSON_EVERY_S", 0.0)
    monkeypatch.setattr("samovar.changelog.spark.session.LOOK_S", 0.01)
    service.process(many(60))
    done = run("restore", service.config, "--engine", "spark", "--json")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    told = [line["progress"] for line in lines if "progress" in line]
    assert told
    assert {"job", "stages", "tasks", "rows", "total", "rows_per_s", "left_s"} <= set(told[-1])
    assert told[-1]["total"] == sum(each["records"] for each in json.loads(done.stdout)["plan"])


# ---------------------------------------------------------------- what an executor does, without Spark


def test_p2_a_changelog_in_many_parts(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newest rows do not fit in memory at once: later files win over earlier ones, and delete what is gone."""
    monkeypatch.setenv("SAMOVAR_TUNABLES__RESTORE_ROWS", "5")
    monkeypatch.setenv("SAMOVAR_TUNABLES__RESTORE_RECORDS", "4")
    for number in range(4):
        service.process(many(60, start_s=number * 3_000))
    service.process([purchase(f"x{number}", 200_000 + number, 30) for number in range(6)])  # all others are over
    before = service.digests()
    with service.log() as log:
        site = site_of(service.settings, log)
        asked = RestoreRequest(source="changelog", engine="spark")
        for planned in plan_restore(site, asked, service.clock.now_ms):
            staged = stage(JobPart(shipped(site), planned, tmp_path / "staging"), Ticker(None, ""))
            assert len(staged.files) > 2
            assert staged.manifest.digest == before[planned.partition]
            assert taken(site, staged, tmp_path / f"taken-{planned.partition}") == before[planned.partition]
    wipe(service)
    assert digests_in(restored(service, "--ingest", tmp_path / "staging", "--verify")) == before


def taken(site: StateLocation, staged: StagedTables, folder: Path) -> str:
    """The digest of a store that took staged files, and nothing else."""
    store = RocksStore(folder)
    try:
        store.ingest_tables(staged.files)
        return digest_of(plan_for(site, staged.manifest.partition, position_of(store)), store)
    finally:
        store.close()


def test_p2_after_compaction_with_tombstones(service: Service, tmp_path: Path) -> None:
    """P2, P10: gaps of the embedded log are passed, and deleted keys stay deleted."""
    service.config.write_text(service.config.read_text() + "changelog: {min_compaction_lag: 1s}\n")
    for number in range(6):
        service.process(many(40, start_s=number * 3_000))
        service.clock.pass_ms(60_000)
    service.process([purchase(f"x{number}", 200_000 + number, 30) for number in range(6)])  # all others are over
    service.clock.pass_ms(60_000)
    with service.log() as log:
        log.compact("s-changelog")
        found = [each for at in (0, 1) for each in read_all(log, TopicPartition("s-changelog", at))]
        ends = sum(service.changelog_end(partition) for partition in (0, 1))
        assert sum(map(len, found)) < ends, "nothing was compacted"
        assert any(each.null.any() for each in found), "there is no tombstone"
        before = service.digests()
        site = site_of(service.settings, log)
        asked = RestoreRequest(source="changelog", engine="spark")
        for planned in plan_restore(site, asked, service.clock.now_ms):
            staged = stage(JobPart(shipped(site), planned, tmp_path / "staging"), Ticker(None, ""))
            assert staged.manifest.digest == before[planned.partition]
            assert staged.manifest.offset == planned.end


def test_an_executor_that_fails_leaves_no_files(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.process(many(60))
    monkeypatch.setattr("samovar.service.spark.jobs.digest_of", _failing)
    with service.log() as log:
        site = site_of(service.settings, log)
        (planned, _) = plan_restore(site, RestoreRequest(source="changelog", engine="spark"), service.clock.now_ms)
        with pytest.raises(Refused):
            stage(JobPart(shipped(site), planned, tmp_path / "staging"), Ticker(None, ""))
    assert [path for path in (tmp_path / "staging").rglob("*") if path.is_file()] == []


def _failing(*_: object) -> str:
    raise Refused("state-damaged", "no digest", "Try again.")
