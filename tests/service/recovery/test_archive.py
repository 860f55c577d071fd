"""`samovar archive`: a service whose log has lost its beginning, and that answers as if it had not."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from samovar.changelog.archive.archive import Archive, Chain
from samovar.changelog.archive.archived_log import archived_log
from samovar.changelog.archive.folder import open_folder
from samovar.changelog.cursors import read_all
from samovar.changelog.kafka.read import places_of
from samovar.changelog.log import TopicPartition
from samovar.common.failpoints import ARCHIVES
from samovar.service.config.loading import load_service
from samovar.service.ops.archive import archive_status
from samovar.service.recovery.archiving import Archiver
from samovar.service.topology.archives import needed_archive
from samovar.service.topology.logs import opened
from tests.contracts.log_driving import rows_of
from tests.faults.harness import wait_until
from tests.support.object_store import BUCKET, client, s3_server
from tests.support.small_service import HOUR, START, Service, make, many, restored, run, run_apart

DAY = 24 * HOUR
TINY = "tunables: {archive_records: 17, archive_group_records: 5}\n"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "archive: cold\n" + TINY)
    service.clock.now_ms -= 30 * DAY
    return service


def copied(service: Service) -> dict[str, int]:
    done = run("archive", service.config, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, int] = json.loads(done.stdout)
    return found


def backtested(service: Service, *options: object) -> list[dict[str, Any]]:
    done = run("rules", "backtest", service.config.parent / "rules", service.config, "--json", *options)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["rules"]
    return found


def verified(service: Service) -> tuple[int, Any]:
    done = run("verify", service.config, "--json")
    return done.exit_code, json.loads(done.stdout) if done.exit_code in (0, 3) else done.output


def take_away(service: Service, days: int = 9) -> None:
    """Retention and compaction do their worst."""
    service.clock.pass_ms(days * DAY)
    with service.log() as log:
        for topic in ("purchase", "s-changelog"):
            log.compact(topic)


def begins(service: Service) -> list[int]:
    with service.log() as log:
        places = [TopicPartition("purchase", number) for number in (0, 1)]
        return [bounds.begin for bounds in log.bounds(places).values()]


def test_what_retention_took_is_verified_rebuilt_and_backtested_as_before(service: Service, tmp_path: Path) -> None:
    service.process(many(80))
    service.settle()
    copied(service)
    service.clock.pass_ms(8 * DAY)
    service.process(many(60, start_s=300))
    service.settle()
    code, _ = verified(service)
    assert code == 0
    before, found = service.digests(), backtested(service)
    past = restored(service, "--from", "source", "--to-time", START + 120_000, "--out", tmp_path / "before")
    copied(service)
    take_away(service, 1)
    assert min(begins(service)) > 0
    assert [each["digests"].keys() for each in verified(service)[1]] == [{"store", "changelog", "source"}] * 2
    assert backtested(service) == found
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before
    again = restored(service, "--from", "source", "--to-time", START + 120_000, "--out", tmp_path / "after")
    digests = [[each["digest"] for each in made["restored"]] for made in (past, again)]
    assert digests[0] == digests[1]
    # Without it, all of that is refused as ever.
    shutil.move(tmp_path / "s" / "cold", tmp_path / "away")
    assert verified(service)[0] == 3
    done = run("restore", service.config, "--from", "source")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "input-expired")


def test_a_state_of_any_past_moment_comes_from_the_changelogs_archive(service: Service, tmp_path: Path) -> None:
    """Also long after compaction has taken it from the changelog."""
    moments = []
    for step in range(4):
        service.process(many(30, start_s=step * 200))
        copied(service)
        moments.append((service.clock.now_ms, service.digests()))
        service.clock.pass_ms(20 * HOUR)
    service.process(many(10, start_s=900))
    copied(service)
    take_away(service)
    for time_ms, digests in moments:
        out = tmp_path / f"at-{time_ms}"
        made = restored(service, "--to-time", time_ms, "--out", out)
        assert {each["partition"]: each["digest"] for each in made["restored"]} == digests
    (tmp_path / "s" / "service.yml").write_text(service.config.read_text().replace("archive: cold", ""))
    done = run("restore", service.config, "--to-time", moments[0][0], "--out", tmp_path / "none")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "as-of-compacted")


def test_an_archive_that_was_away_for_too_long_says_so(service: Service, tmp_path: Path) -> None:
    moments = []
    for step in range(3):
        service.process(many(30, start_s=step * 200))
        moments.append(service.clock.now_ms)
        service.clock.pass_ms(40 * HOUR)
        with service.log() as log:
            log.compact("s-changelog")
    copied(service)
    take_away(service)
    done = run("restore", service.config, "--to-time", moments[0], "--out", tmp_path / "none")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "as-of-compacted")


def test_a_missing_file_is_noticed_and_nothing_is_made_of_the_rest(service: Service) -> None:
    service.process(many(200))
    copied(service)
    take_away(service)
    names = sorted((service.config.parent / "cold").rglob("purchase/*/*/*.parquet"))
    names[1].unlink()
    done = run("restore", service.config, "--from", "source", "--dry-run")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "archive-gap"), done.output
    first, following = (int(part) for part in names[1].stem.split("-"))
    assert f"offsets {first:,} to {following - 1:,} of purchase/0" in done.stderr
    done = run("archive", service.config, "--verify")
    assert done.exit_code == 1
    assert "archive-gap: offsets" in done.stdout
    done = run("archive", service.config, "--status")
    assert done.exit_code == 1
    assert "lost: neither the log nor the archive has offsets" in done.stdout


@pytest.mark.parametrize("point", ARCHIVES)
def test_a_kill_at_any_point_loses_nothing_and_doubles_nothing(service: Service, point: str) -> None:
    service.process(many(150))
    kills = 0
    for number in (1, 3, 2, 1, 4, 1):
        done = run_apart("archive", service.config, SAMOVAR_KILL=f"{point}:{number}")
        kills += done.returncode == -signal.SIGKILL
    assert kills >= 3
    copied(service)
    assert copied(service)["records"] == 0
    settings = load_service(service.config)
    with opened(settings) as log:
        archive = needed_archive(settings)
        for topic in log.topics(["purchase", "s-journal", "s-changelog", "s-alerts"]).values():
            for partition in range(topic.partitions):
                at = TopicPartition(topic.name, partition)
                expected = [row for each in read_all(log, at) for row in rows_of(each)]
                end = log.bounds([at])[at].end
                found = [row for each in archive.blocks(topic, partition, 0, end) for row in rows_of(each)]
                assert found == expected
                names = archive.folder.names(archive.place(topic, partition))
                assert len(Chain.of(names).spans) == len(names)
                assert Chain.of(names).gaps() == []


def test_old_files_go_and_the_rest_is_read(service: Service) -> None:
    folder = service.config.parent / "cold"
    service.process(many(100))
    service.settle()
    copied(service)
    service.clock.pass_ms(25 * DAY)
    service.process(many(60, start_s=400))
    service.settle()
    copied(service)
    before = len(list(folder.rglob("purchase/*/*/*.parquet"))), len(list(folder.rglob("s-journal/*/*/*.parquet")))
    service.config.write_text(service.config.read_text().replace("archive: cold", "archive: {to: cold, keep: 10d}"))
    assert copied(service)["records"] == 0
    after = len(list(folder.rglob("purchase/*/*/*.parquet"))), len(list(folder.rglob("s-journal/*/*/*.parquet")))
    assert 2 <= after[0] < before[0]
    assert after[1] == before[1]
    assert run("archive", service.config, "--verify").exit_code == 0
    assert copied(service)["records"] == 0
    assert verified(service)[0] == 3


def test_events_that_wait_are_read_from_the_archive_when_a_container_starts(service: Service) -> None:
    """They were taken by retention while it was away; without the archive it would refuse."""
    service.config.write_text(service.config.read_text().replace("slack: 2s", "slack: 1h"))
    service.process(many(60))
    copied(service)
    take_away(service)
    service.process(many(20, start_s=9_000))
    code, found = verified(service)
    assert code == 0, found
    assert min(begins(service)) > 0


def followed(service: Service, slots: int) -> list[str]:
    """What followers say until nothing is left to be copied."""
    settings, told = load_service(service.config), list[str]()
    with ExitStack() as stack:
        logs = [stack.enter_context(opened(settings)) for _ in range(slots)]
        archivers = [Archiver(settings, log, slot, told.append) for slot, log in enumerate(logs)]
        threads = [threading.Thread(target=each.run) for each in archivers]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: not any(each.lag for each in archive_status(settings, logs[0], 0)), "all is copied")
        finally:
            for each, thread in zip(archivers, threads, strict=True):
                each.stopped.set()
                thread.join()
    return told


def test_followers_share_the_work_and_say_what_nobody_has_any_more(service: Service) -> None:
    service.process(many(60))
    service.settle()
    assert followed(service, 2) == []
    assert run("archive", service.config, "--verify").exit_code == 0
    first = begins(service)
    service.clock.pass_ms(8 * DAY)
    service.process(many(60, start_s=900))
    service.settle()
    take_away(service)
    service.process(many(40, start_s=1_800))
    assert all(begin > before for begin, before in zip(begins(service), first, strict=True))
    findings = json.loads(run("doctor", service.config, "--json").stdout)["findings"]
    (found,) = (each for each in findings if each["about"] == "archive")
    assert (found["state"], "that nobody has any more" in found["what"]) == ("fail", True)
    told = followed(service, 1)
    assert any(text.startswith("archive-gap: retention took offsets ") for text in told)
    assert run("archive", service.config, "--verify").exit_code == 1


def test_the_doctor_warns_before_retention_takes_what_is_not_copied(service: Service) -> None:
    service.clock.pass_ms(30 * DAY - 5 * DAY)
    service.process(many(10))
    findings = json.loads(run("doctor", service.config, "--json").stdout)["findings"]
    (found,) = (each for each in findings if each["about"] == "archive")
    assert (found["state"], "retention takes what is not copied" in found["what"]) == ("warn", True)
    copied(service)
    findings = json.loads(run("doctor", service.config, "--json").stdout)["findings"]
    assert [each["state"] for each in findings if each["about"] == "archive"] == ["ok"]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield dict(options)


def test_an_archive_in_s3(service: Service, s3: dict[str, str]) -> None:
    prefix = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    text = json.dumps({"to": prefix, "options": s3})
    service.config.write_text(service.config.read_text().replace("archive: cold", f"archive: {text}"))
    service.process(many(80))
    service.settle()
    before = service.digests()
    assert copied(service)["files"] > 5
    assert copied(service)["files"] == 0
    take_away(service)
    assert run("archive", service.config, "--verify").exit_code == 0
    assert run("restore", service.config, "--from", "source", "--verify").exit_code == 0
    assert service.digests() == before
    store = client(s3)
    name = sorted(each for each in store.find(prefix) if "/purchase/" in each)[0]
    data = store.cat_file(name)
    half = len(data) // 2  # of single bytes, some say nothing to a reader
    store.pipe_file(name, data[:4] + bytes(255 - byte for byte in data[4:half]) + data[half:])
    done = run("archive", service.config, "--verify")
    assert (done.exit_code, "archive-damaged" in done.stdout) == (1, True)
    shown = run("config", "show", service.config)
    assert "word" not in shown.stdout.replace("password", "")
    wrong = service.config.read_text().replace(s3["endpoint_url"], "http://127.0.0.1:1")
    service.config.write_text(wrong)
    done = run("archive", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "archive-unreachable")


def test_on_kafka_with_transactions(kafka: str, tmp_path: Path) -> None:
    name = f"arch-{uuid.uuid4().hex[:8]}"
    service = make(tmp_path / "s")
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\narchive: cold\n{TINY}')
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in many(120)))
    assert run("produce", service.config, "purchase", events).exit_code == 0
    ran = run_apart("run", service.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    before, found = service.digests(), backtested(service)
    copied(service)
    assert copied(service)["records"] == 0
    settings = load_service(service.config)
    places = [TopicPartition(name, number) for number in (0, 1)]
    with opened(settings) as log:
        ends = {at: bounds.end for at, bounds in log.bounds(places).items()}
    admin, asked = AdminClient({"bootstrap.servers": kafka}), places_of(places)
    for place in asked:
        place.offset = ends[TopicPartition(place.topic, place.partition)]
    for future in admin.delete_records(asked).values():
        future.result()
    with opened(settings) as log:
        assert all(bounds.begin == bounds.end > 0 for bounds in log.bounds(places).values())
        archive = Archive(open_folder(str(service.config.parent / "cold"), {}), name)
        assert all(bounds.begin == 0 for bounds in archived_log(log, archive).bounds(places).values())
    assert verified(service)[0] == 0
    assert backtested(service) == found
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before
    done = run("archive", service.config, "--verify")
    assert done.exit_code == 0, done.output


def test_what_an_archive_says_of_nothing_and_of_folders_that_cannot_be_made(service: Service) -> None:
    for option in ("--status", "--verify"):
        done = run("archive", service.config, option)
        assert (done.exit_code, done.stdout.startswith("nothing to copy yet")) == (0, True), done.output
    service.config.write_text(service.config.read_text().replace("archive: cold", "archive: /proc/cold"))
    done = run("archive", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "archive-unreachable"), done.output
