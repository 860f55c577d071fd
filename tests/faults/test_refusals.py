"""State and logs that do not belong together, lost and damaged parts: the exact state, or a refusal that says what to
do; never a wrong answer, never a hang (P4, P7, P10).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.changelog.cursors import read_all
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats.record import CHECKPOINT, ChangelogCheckpoint, pack_checkpoint
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.restore.restore import checkpoint_of
from samovar.state import snapshots
from samovar.tasks.model.clock import SetClock
from tests.contracts.log_driving import commit_offsets
from tests.faults import world
from tests.faults.comparing import same_alerts, told_by_oracle
from tests.faults.conftest import Making
from tests.faults.harness import Service
from tests.faults.stage import staged

HOUR_MS = 3_600_000
EVENTS = 150


@pytest.fixture
def service(make: Making) -> Service:
    """A service that has processed something and stopped."""
    made = make(world.RULES, world.STREAMS)
    made.append_pairs(world.STREAM, world.take(world.events(1), EVENTS))
    made.run_to_end()
    return made


@pytest.fixture
def here(make_here: Making) -> Service:
    """The same on the embedded log, where the test looks into files."""
    made = make_here(world.RULES, world.STREAMS)
    made.append_pairs(world.STREAM, world.take(world.events(1), EVENTS))
    made.run_to_end()
    return made


def ends_right(service: Service) -> None:
    """The rest of the input, and then everything as the oracle has it."""
    source = world.events(2)
    service.append_pairs(world.STREAM, world.take(source, EVENTS))
    world.end(service)
    service.run_to_end()
    same_alerts(service, told_by_oracle(service, world.STREAM))


def follow(service: Service, change: Callable[[ChangelogCheckpoint], ChangelogCheckpoint], partition: int = 0) -> None:
    """Change what a store says about its changelog."""
    with service.store(partition) as store:
        checkpoint = checkpoint_of(store)
        assert checkpoint is not None
        store.write([(CHECKPOINT, pack_checkpoint(change(checkpoint)))])


def made_again(service: Service, topic: str, partitions: int | None = None) -> None:
    """Delete a topic and make it again, empty."""
    old = service.log.topics([topic])[topic]
    service.log.delete([topic])
    service.log.create([TopicSpec(topic, partitions or old.partitions, old.settings)])


# ---------------------------------------------------------------- changelogs


def test_a_store_beyond_its_changelogs_end_is_refused(service: Service) -> None:
    """P4."""
    follow(service, lambda old: replace(old, next=old.next + 1_000))
    service.refused("store-ahead", "samovar restore")
    follow(service, lambda old: replace(old, next=old.next - 1_000))
    ends_right(service)


def test_a_changelog_that_was_made_again_is_refused(service: Service) -> None:
    """P4."""
    made_again(service, service.settings.changelog.topic)
    service.refused("changelog-recreated", "samovar restore --from source")
    service.wipe()
    service.refused("state-lost", "samovar restore --from source")


def test_a_journal_that_was_made_again_is_refused_until_its_records_are_put_back(service: Service) -> None:
    """P4: with the store, and without it, since the changelog has the position too."""
    name = service.settings.journal.topic
    parts = [TopicPartition(name, number) for number in range(service.partitions)]
    copies = {at: [pair for records in read_all(service.log, at) for pair in records.pairs()] for at in parts}
    made_again(service, name)
    service.refused("topic-recreated", "Put its records back")
    service.wipe()
    service.refused("topic-recreated", "Put its records back")
    service.log.append([Append(topic=name, records=copies[parts[0]], partition=0)])
    service.refused("topic-recreated", "of partition 1 it lacks")
    service.log.append([Append(topic=at.topic, records=copies[at], partition=at.partition) for at in parts[1:]])
    ends_right(service)


def test_a_changelog_with_other_partitions_is_refused(service: Service) -> None:
    """P4: first where topics are checked, and also where the whole service has other partitions now."""
    made_again(service, service.settings.changelog.topic, 3)
    service.refused("topic-partitions", "samovar repartition")
    for topic in (service.settings.journal.topic, service.settings.streams[world.STREAM].topic):
        made_again(service, topic, 3)
    service.edit(lambda data: data["streams"][world.STREAM].update(partitions=3))
    service.refused("changelog-repartitioned", "new service name")


def test_a_changelog_that_lost_its_end_is_refused(here: Service) -> None:
    """P4: with the store, because that is ahead; without it, because the group's offsets are."""
    shortened(here, here.settings.changelog.topic)
    here.refused("store-ahead", "samovar restore")
    here.wipe()
    running = here.start("--until-caught-up")
    assert running.ended() == 2, running.text
    assert "offsets-differ: " in running.text or "state-lost: " in running.text


def shortened(service: Service, topic: str) -> None:
    """Take the last segment of each partition away, as a disk that lied about a sync does."""
    folder = service.settings.log.embedded
    assert folder is not None
    with sqlite3.connect(folder / "log.db") as file:
        (number,) = file.execute("SELECT number FROM topic WHERE name = ?", (topic,)).fetchone()
        for partition in range(service.partitions):
            where = number, partition
            (first,) = file.execute(
                "SELECT max(first) FROM segment WHERE topic = ? AND partition = ?", where
            ).fetchone()
            file.execute("DELETE FROM segment WHERE topic = ? AND partition = ? AND first = ?", (*where, first))
            file.execute("UPDATE partition SET end = ? WHERE topic = ? AND partition = ?", (first, *where))
    file.close()


# ---------------------------------------------------------------- offsets and inputs


def test_offsets_that_are_not_the_states_are_refused(service: Service) -> None:
    """P1: to take records again, or to pass over some, is never done quietly."""
    at = TopicPartition(service.settings.streams[world.STREAM].topic, 0)
    group = service.settings.service
    offset = service.log.committed(group, [at])[at]
    assert offset is not None
    for wrong in (offset - 1, 0, offset + 1) if service.settings.log.embedded else (offset - 1,):
        service.nobody_there()
        commit_offsets(service.log, group, {at: wrong})
        service.refused("offsets-differ", "Offsets and state move together only")
    service.nobody_there()
    commit_offsets(service.log, group, {at: offset})
    ends_right(service)


def test_without_offsets_the_states_own_position_counts(here: Service) -> None:
    """A broker forgets the offsets of a group that was away for long; they must not be read as 0."""
    folder = here.settings.log.embedded
    assert folder is not None
    with sqlite3.connect(folder / "log.db") as file:
        file.execute("DELETE FROM place")
    file.close()
    ends_right(here)


def test_an_input_that_was_made_again_is_refused(service: Service) -> None:
    """P4."""
    made_again(service, service.settings.streams[world.STREAM].topic)
    service.refused("input-replaced", "another service name")


def test_an_input_that_ends_before_the_state_is_refused(here: Service) -> None:
    shortened(here, here.settings.streams[world.STREAM].topic)
    here.refused("input-truncated", "samovar restore --from source")


def test_an_input_that_no_longer_has_what_waits_is_refused(here: Service) -> None:
    """Events that waited for event time are read again after a stop."""
    folder, topic = here.settings.log.embedded, here.settings.streams[world.STREAM].topic
    assert folder is not None
    with sqlite3.connect(folder / "log.db") as file:
        (number,) = file.execute("SELECT number FROM topic WHERE name = ?", (topic,)).fetchone()
        file.execute("UPDATE partition SET begin = end WHERE topic = ?", (number,))
        file.execute("DELETE FROM segment WHERE topic = ?", (number,))
    file.close()
    here.refused("input-expired", "retention")


# ---------------------------------------------------------------- damage


def with_tables(service: Service, partition: int = 0) -> Path:
    """The store's folder, with all rows in table files."""
    with service.store(partition) as store:
        store.flush()
        store.compact()
    return service.store_folder(partition)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["*.sst", "MANIFEST-*"])
def test_a_flipped_bit_in_a_store_is_refused(here: Service, name: str) -> None:
    """Never a wrong answer; what was damaged is rebuilt from the changelog."""
    file = max(with_tables(here).glob(name), key=lambda path: path.stat().st_size)
    flip(file, file.stat().st_size // 3)
    here.refused("store-damaged", "samovar restore")
    here.wipe()
    ends_right(here)


def test_a_flipped_bit_in_a_snapshot_passes_it_over(make_here: Making) -> None:
    """The store is lost, the newest snapshot is damaged: an older one or the changelog give the exact state (P2)."""
    service = make_here(world.RULES, world.STREAMS, snapshots={"every": "1ms", "keep": 2})
    service.append_pairs(world.STREAM, world.take(world.events(1), EVENTS))
    service.run_to_end(poll=10)
    wanted = service.digests()
    for partition in range(service.partitions):
        folder = service.store_folder(partition).parent / "snapshots"
        found = snapshots.newest_valid(folder).snapshot
        assert found is not None
        flip(found.folder / "manifest.json", 100)
    service.wipe(snapshots=False)
    said = service.run_to_end()
    assert "manifest.json" in said
    assert service.digests() == wanted
    ends_right(service)


def test_a_state_folder_that_cannot_be_made_is_refused_with_what_to_do(make_here: Making) -> None:
    service = make_here(world.RULES, world.STREAMS, state="service.yml/state")
    service.refused("state-unwritable", "set `state` to another folder", "Nothing is lost")


def test_a_file_that_may_not_grow_is_refused_and_nothing_is_lost(service: Service) -> None:
    """P1, P3: whether the store or the log cannot grow, the next start goes on from the last commit."""
    service.append_pairs(world.STREAM, world.take(world.events(3), 1_500))
    running = service.start("--until-caught-up", poll=25, file_bytes=60 * 1024, trouble_s=1.0)
    assert running.ended() == 2, running.text
    assert "store-full: " in running.text or "log-unusable: " in running.text
    ends_right(service)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root; a limit on the size of files is tested next to this")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.mark.parametrize(("setting", "size", "code"), [("state", "300k", "store-full"), ("log", "3m", "log-disk-full")])
def test_a_full_disk_is_refused_and_nothing_is_lost(
    make_here: Making, disk: Path, setting: str, size: str, code: str
) -> None:
    """P1, P3: the container ends with what to do; with more space it goes on from the last commit."""
    service = make_here(world.RULES, world.STREAMS)
    value: object = str(disk / setting) if setting == "state" else {"embedded": str(disk / setting)}
    service.edit(lambda data: data.update({setting: value}))
    service.append_pairs(world.STREAM, world.take(world.events(1), 4_000))
    resize(disk, size)
    running = service.start("--until-caught-up", poll=25)
    assert running.ended() == 2, running.text
    assert f"\n{code}: " in running.text
    assert "Free some space" in running.text
    resize(disk, "200m")
    ends_right(service)


# ---------------------------------------------------------------- away for long


def test_a_store_away_longer_than_deletes_are_kept_is_replaced_whole(make_here: Making, tmp_path: Path) -> None:
    """P10: what was deleted meanwhile, and whose tombstones are gone, stays deleted."""
    changelog = {"min_compaction_lag": "0s", "delete_retention": "1h"}
    service = make_here(world.RULES, world.STREAMS, changelog=changelog)
    clock = SetClock(time.time_ns() // 1_000_000)
    with staged(service) as stage:
        stage.clock = clock
        service.append_pairs(world.STREAM, world.take(world.events(1), EVENTS))
        stage.settle()
        stage.close()
        shutil.copytree(service.settings.state, tmp_path / "old")
        world.end(service)  # every row goes
        stage.settle()
        stage.close()
        wanted = rows(service)
        assert not [key for key, _ in wanted[0] if key[:1] == b"r"]
        tombstones_go(service)
        shutil.rmtree(service.settings.state)
        shutil.move(tmp_path / "old", service.settings.state)
        assert [key for key, _ in rows(service)[0] if key[:1] == b"r"]
        clock.pass_ms(HOUR_MS)
        stage.settle()
        assert any("too old to be tailed" in text for text in stage.said)
        stage.close()
        assert service.digests() == {0: EMPTY, 1: EMPTY}
        assert rows(service) == wanted
    same_alerts(service, told_by_oracle(service, world.STREAM))


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def rows(service: Service) -> list[list[tuple[bytes, bytes]]]:
    """All rows but the one that says when the store was last written."""
    found = []
    for partition in range(service.partitions):
        with service.store(partition) as store:
            found.append([(key, value) for key, value in store.range() if key[:1] in (b"r", b"p")])
    return found


def tombstones_go(service: Service) -> None:
    """Compact the changelog as it will be done a day from now."""
    folder = service.settings.log.embedded
    assert folder is not None
    topic = service.settings.changelog.topic
    for hours in (1, 50):
        log = EmbeddedLog(folder, lambda hours=hours: time.time_ns() // 1_000_000 + hours * HOUR_MS)  # type: ignore[misc]
        log.compact(topic)
        log.close()
    left = [row for row in service.changelog() if row.value is None]
    assert not left, f"{len(left)} tombstones are still there"


# ---------------------------------------------------------------- versions


def test_a_state_of_a_newer_version_is_refused(here: Service) -> None:
    with here.store() as store:
        data = json.loads(store.get(CHECKPOINT) or b"")
        store.write([(CHECKPOINT, json.dumps({**data, "v": 99}).encode())])
    here.refused("format-newer", "Run the version that wrote it")


def test_a_stream_that_was_taken_out_is_refused(make_here: Making) -> None:
    other = {"other": {"key": "card", "partitions": world.PARTITIONS, "idle": "1h"}}
    service = make_here(world.RULES, {**world.STREAMS, **other})
    service.append_pairs(world.STREAM, world.take(world.events(1), 20))
    service.run_to_end()
    service.edit(lambda data: data["streams"].pop("other"))
    service.refused("stream-removed", "another name")
