"""Processes of the embedded log: they are killed, they meet, they hand over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from samovar.changelog.embedded.locks import folder_of, take
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Delivery, GroupConfig, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from tests.contracts.log_driving import Seat, drive, read_to_end, seated, until, values

AT, OUT = TopicPartition("in", 0), TopicPartition("out", 0)

MEMBER = """
import sys
from pathlib import Path
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Delivery, GroupConfig, TopicPartition

folder, slot, act = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
owned = []
joining = GroupConfig(
    group="g",
    slot=slot,
    topics=["in"],
    delivery=Delivery.EXACTLY_ONCE,
    on_assigned=owned.extend,
    on_revoked=lambda _: None,
    on_lost=lambda _: None,
)
member = EmbeddedLog(folder).join(joining)
while not owned:
    member.poll(10, 0.05)
if act == "transact":
    appends = [
        Append(topic="out", records=[(b"k", bytes(500_000)), (b"k", b"v")], partition=0),
        Append(topic="out", records=[(b"k", b"w")]),
    ]
    member.transact(appends, {TopicPartition("in", 0): 1})
print("ready", flush=True)
while True:
    member.poll(10, 0.05)
"""

WRITER = """
import sys
from pathlib import Path
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append

folder, name, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = EmbeddedLog(folder)
for turn in range(turns):
    records = [(name.encode(), b"%d" % (turn * 5 + more)) for more in range(5)]
    log.append([Append(topic="out", records=records, partition=0)])
log.close()
"""


def start(script: str, *arguments: object, kill: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"SAMOVAR_KILL": kill}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path)
    log.create([TopicSpec("in", 4), TopicSpec("out", 1)])
    yield log
    log.close()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, in slot 1."""
    with start(MEMBER, tmp_path, 1, "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


# ---------------------------------------------------------------- crashes


@pytest.mark.parametrize(
    "point", ["produce.before", "produce.after", "offsets.before", "offsets.after", "commit.before", "commit.after"]
)
def test_a_kill_in_a_transaction_leaves_all_of_it_or_nothing(log: EmbeddedLog, tmp_path: Path, point: str) -> None:
    """P1, P3, P5: no half, no lock, and the next container goes on at once."""
    with start(MEMBER, tmp_path, 0, "transact", kill=point) as process:
        assert process.wait(60) == -signal.SIGKILL
    done = point == "commit.after"
    assert log.members("g") == []
    assert log.committed("g", [AT]) == {AT: 1 if done else None}
    assert values(read_to_end(log, "out")) == ([bytes(500_000), b"v", b"w"] if done else [])
    heir = seated(Seat(log, "g", ["in"]), 4)
    assert heir.member.transact([Append(topic="out", records=[(b"k", b"next")], partition=0)], {AT: 2}) == {
        OUT: 3 if done else 0
    }
    heir.member.close()
    assert values(read_to_end(log, "out"))[-1] == b"next"


def test_a_container_that_is_killed_gives_up_everything_at_once(
    log: EmbeddedLog, container: subprocess.Popen[str]
) -> None:
    """P5, P6: the kernel drops its locks."""
    assert log.members("g") == ["slot-1"]
    mine = Seat(log, "g", ["in"], slot=0)
    drive(lambda: len(mine.owned) == 2, mine, what="the other gives up half")
    assert {at.partition for at in mine.owned} == {0, 1}
    container.kill()
    drive(lambda: len(mine.owned) == 4, mine, what="all of it")
    assert "revoked" not in mine.told
    mine.member.close()
    assert log.members("g") == []


def test_a_slot_has_one_live_member(log: EmbeddedLog, container: subprocess.Popen[str]) -> None:
    """P6"""
    with pytest.raises(Refused, match=f"process {container.pid}") as refused:
        Seat(log, "g", ["in"], slot=1)
    assert refused.value.code == "slot-taken"
    assert log.members("g") == ["slot-1"]
    container.kill()
    container.wait(60)
    again = seated(Seat(log, "g", ["in"], slot=1), 4)
    again.member.close()


def test_partitions_of_topics_with_different_counts_stay_together(log: EmbeddedLog, tmp_path: Path) -> None:
    """P6: partition p of all topics has one owner, also where one topic has fewer."""
    log.create([TopicSpec("short", 2)])
    one, two = (Seat(log, "g", ["in", "short"], slot=slot) for slot in (3, 5))
    drive(lambda: len(one.owned) + len(two.owned) == 6, one, two)
    assert one.owned == {TopicPartition(topic, partition) for topic in ("in", "short") for partition in (0, 1)}
    assert two.owned == {TopicPartition("in", 2), TopicPartition("in", 3)}
    one.member.close()
    drive(lambda: len(two.owned) == 6, two)
    two.member.close()


def test_a_revoked_partition_is_held_until_its_owner_has_let_go(log: EmbeddedLog, tmp_path: Path) -> None:
    """P1, P6: in `on_revoked` the last batch can still be committed, and nobody else has the partition."""
    held: list[bool] = []

    def on_revoked(partitions: Collection[TopicPartition]) -> None:
        locks = folder_of(tmp_path, "g")
        held.extend(take(locks / f"partition-{at.partition}") is None for at in partitions)
        member.transact([Append(topic="out", records=[(b"k", b"last")], partition=0)], dict.fromkeys(partitions, 5))

    owned: list[TopicPartition] = []
    member = log.join(
        GroupConfig(
            group="g",
            slot=0,
            topics=["in"],
            delivery=Delivery.EXACTLY_ONCE,
            on_assigned=owned.extend,
            on_revoked=on_revoked,
            on_lost=lambda _: pytest.fail("lost"),
        )
    )
    until(lambda: len(owned) == 4, lambda: member.poll(10, 0.01))
    other = Seat(log, "g", ["in"], slot=1)
    drive(lambda: (member.poll(10, 0.01), len(other.owned) == 2)[1], other)
    assert held == [True, True]
    member.close()
    assert held == [True] * 4
    other.member.close()
    assert set(log.committed("g", owned).values()) == {5}


def test_a_stop_leaves_one_file_and_no_lock(tmp_path: Path) -> None:
    """P5"""
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create([TopicSpec("in", 1)])
        seat = seated(Seat(log, "g", ["in"]), 1)
        seat.member.transact([], {AT: 0})
        seat.member.close()
        seat.member.close()
        assert log.members("g") == []
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["log.db"]


def test_several_processes_write_at_once(log: EmbeddedLog, tmp_path: Path) -> None:
    """P1: each one's records are all there, once and in order."""
    writers = {name: start(WRITER, tmp_path, name, 30) for name in ("a", "b", "c")}
    for writer in writers.values():
        with writer:
            assert writer.wait(120) == 0
    rows = read_to_end(log, "out")
    assert [row.offset for row in rows] == list(range(450))
    for name in writers:
        assert [row.value for row in rows if row.key == name.encode()] == [b"%d" % number for number in range(150)]


def test_many_processes_may_open_a_new_log_at_once(tmp_path: Path) -> None:
    writers = [start(WRITER, tmp_path / "new", number, 0) for number in range(4)]
    for writer in writers:
        with writer:
            assert writer.wait(120) == 0


HAS_LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except BlockingIOError:
        print("locked")
"""


def test_opening_a_log_again_leaves_the_locks_of_its_first_reader(log: EmbeddedLog, tmp_path: Path) -> None:
    """Without them another process takes itself for the last one, and deletes what this one reads (P3)."""
    file = next(tmp_path.rglob("log.db"))

    def locks() -> str:
        done = subprocess.run([sys.executable, "-c", HAS_LOCKS, file], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    log.topics(["t"])
    assert locks() == "locked"
    other = EmbeddedLog(file.parent)
    assert locks() == "locked"
    other.close()
