"""Processes of the embedded log: they are killed, they meet, they run out of disk, they find a broken file."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from samovar.changelog import embedded_file
from samovar.changelog.embedded import EmbeddedLog
from samovar.changelog.embedded_locks import folder_of, take
from samovar.changelog.errors import Refused
from samovar.changelog.log import Append, Delivery, Joining, TopicPartition, TopicSpec
from tests.contracts.log_driving import Seat, drive, read_to_end, seated, until, values

AT, OUT = TopicPartition("in", 0), TopicPartition("out", 0)

MEMBER = """
import sys
from pathlib import Path
from samovar.changelog.embedded import EmbeddedLog
from samovar.changelog.log import Append, Delivery, Joining, TopicPartition

folder, slot, act = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
owned = []
joining = Joining("g", slot, ["in"], Delivery.EXACTLY_ONCE, owned.extend, lambda _: None, lambda _: None)
member = EmbeddedLog(folder).join(joining)
while not owned:
    member.poll(10, 0.05)
if act == "transact":
    appends = [Append("out", [(b"k", bytes(500_000)), (b"k", b"v")], 0), Append("out", [(b"k", b"w")])]
    member.transact(appends, {TopicPartition("in", 0): 1})
print("ready", flush=True)
while True:
    member.poll(10, 0.05)
"""

WRITER = """
import sys
from pathlib import Path
from samovar.changelog.embedded import EmbeddedLog
from samovar.changelog.log import Append

folder, name, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = EmbeddedLog(folder)
for turn in range(turns):
    log.append([Append("out", [(name.encode(), b"%d" % (turn * 5 + more)) for more in range(5)], 0)])
log.close()
"""

FULL = """
import sys
from pathlib import Path
from samovar.changelog.embedded import EmbeddedLog
from samovar.changelog.errors import Refused
from samovar.changelog.log import Append, TopicPartition, TopicSpec

log = EmbeddedLog(Path(sys.argv[1]))
log.create([TopicSpec("out", 1)])
written, code = 0, ""
while not code:
    try:
        written += log.append([Append("out", [(b"k", bytes(100_000))] * 3, 0)])
    except Refused as refused:
        code = refused.code
at = TopicPartition("out", 0)
print(code, written > 0 and log.bounds([at])[at].end == written)
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
    assert heir.member.transact([Append("out", [(b"k", b"next")], 0)], {AT: 2}) == {OUT: 3 if done else 0}
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
    with pytest.raises(Refused) as refused:
        log.set_committed("g", {AT: 1})
    assert refused.value.code == "group-active"
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
        member.transact([Append("out", [(b"k", b"last")], 0)], dict.fromkeys(partitions, 5))

    owned: list[TopicPartition] = []
    member = log.join(
        Joining("g", 0, ["in"], Delivery.EXACTLY_ONCE, owned.extend, on_revoked, lambda _: pytest.fail("lost"))
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


# ---------------------------------------------------------------- full disks


def test_a_full_disk_is_a_refusal_and_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_file, "SETTINGS", (*embedded_file.SETTINGS, "PRAGMA max_page_count = 100"))
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create([TopicSpec("in", 1), TopicSpec("out", 1)])
        log.append([Append("out", [(b"k", b"fits")], 0)])
        with pytest.raises(Refused) as refused:
            log.append([Append("out", [(b"k", bytes(2_000_000))], 0)])
        assert refused.value.code == "log-disk-full"
        seat = seated(Seat(log, "g", ["in"]), 1)
        with pytest.raises(Refused) as refused:
            seat.member.transact([Append("out", [(b"k", bytes(2_000_000))], 0)], {AT: 1})
        assert refused.value.code == "log-disk-full"
        seat.member.close()
        assert values(read_to_end(log, "out")) == [b"fits"]
        assert log.committed("g", [AT]) == {AT: None}
        log.append([Append("out", [(b"k", b"fits, too")], 0)])
        assert values(read_to_end(log, "out")) == [b"fits", b"fits, too"]


def test_a_small_disk_fills_up(tmp_path: Path) -> None:
    """A real one: a file system of 6 MB, seen by one process only."""
    mounted = f"mount -t tmpfs -o size=6m tmpfs {tmp_path}"
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*alone, mounted], capture_output=True, check=False).returncode
    ):
        pytest.skip("this system lets nobody mount a file system here")
    script = f'{mounted} && exec "$0" -c "$1" {tmp_path}'
    ran = subprocess.run(
        [*alone, script, sys.executable, FULL], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == "log-disk-full True\n"


# ---------------------------------------------------------------- broken files


def written(folder: Path) -> Path:
    """A log with 20 large records, closed; its file."""
    with closing(EmbeddedLog(folder)) as log:
        log.create([TopicSpec("out", 1)])
        for number in range(20):
            log.append([Append("out", [(b"k", bytes([number]) * 50_000)], 0)])
    return folder / "log.db"


def code_of_reading(folder: Path) -> str:
    """The code with which a log is refused, on opening or on reading; "" where all was read as it was written."""
    try:
        with closing(EmbeddedLog(folder)) as log:
            rows = read_to_end(log, "out")
    except Refused as refused:
        return refused.code
    assert values(rows) == [bytes([number]) * 50_000 for number in range(20)], "a wrong answer"
    return ""


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "log.db").write_bytes(b"not a log" * 1000)
    assert code_of_reading(tmp_path / "garbage") == "log-damaged"
    (tmp_path / "other").mkdir()
    with closing(sqlite3.connect(tmp_path / "other" / "log.db")) as other:
        other.execute("CREATE TABLE topic (x)")
    assert code_of_reading(tmp_path / "other") == "log-damaged"


def test_a_file_of_a_newer_samovar_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {embedded_file.VERSION + 1}")
    assert code_of_reading(tmp_path) == "log-newer"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    os.truncate(path, path.stat().st_size // 2)
    assert code_of_reading(tmp_path) == "log-damaged"


def test_a_flipped_bit_is_a_refusal_or_does_no_harm(tmp_path: Path) -> None:
    """Anywhere in the file: never a wrong answer."""
    path = written(tmp_path)
    whole = path.read_bytes()
    chosen = random.Random(7)
    codes = set()
    for _ in range(40):
        broken = bytearray(whole)
        broken[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(broken)
        codes.add(code_of_reading(tmp_path))
    assert "log-damaged" in codes
    assert codes <= {"", "log-damaged"}


def test_a_torn_commit_never_happened(tmp_path: Path) -> None:
    """P3: the power goes while the last commit is written."""
    before, torn = tmp_path / "before", tmp_path / "torn"
    with closing(EmbeddedLog(before)) as log:
        log.create([TopicSpec("out", 1)])
        log.append([Append("out", [(b"k", b"whole")], 0)])
        committed = (before / "log.db-wal").stat().st_size
        log.append([Append("out", [(b"k", bytes(100_000)), (b"k", b"torn")], 0)])
        torn.mkdir()
        for path in before.glob("log.db*"):
            shutil.copy(path, torn / path.name)
    full = (torn / "log.db-wal").stat().st_size
    assert full > committed
    os.truncate(torn / "log.db-wal", (committed + full) // 2)
    (torn / "log.db-shm").unlink()
    with closing(EmbeddedLog(torn)) as log:
        assert values(read_to_end(log, "out")) == [b"whole"]
