"""The file of the embedded log when the disk is full, and when it is not what was written."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from samovar.changelog.embedded import file
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from tests.contracts.log_driving import Seat, read_to_end, seated, values

AT = TopicPartition("in", 0)

FULL = """
import sys
from pathlib import Path
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.common.errors import Refused
from samovar.changelog.log import Append, TopicPartition, TopicSpec

log = EmbeddedLog(Path(sys.argv[1]))
log.create([TopicSpec("out", 1)])
written, code = 0, ""
while not code:
    try:
        written += log.append([Append(topic="out", records=[(b"k", bytes(100_000))] * 3, partition=0)])
    except Refused as refused:
        code = refused.code
at = TopicPartition("out", 0)
print(code, written > 0 and log.bounds([at])[at].end == written)
"""


# ---------------------------------------------------------------- full disks


def test_a_full_disk_is_a_refusal_and_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "SETTINGS", (*file.SETTINGS, "PRAGMA max_page_count = 100"))
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create([TopicSpec("in", 1), TopicSpec("out", 1)])
        log.append([Append(topic="out", records=[(b"k", b"fits")], partition=0)])
        with pytest.raises(Refused) as refused:
            log.append([Append(topic="out", records=[(b"k", bytes(2_000_000))], partition=0)])
        assert refused.value.code == "log-disk-full"
        seat = seated(Seat(log, "g", ["in"]), 1)
        with pytest.raises(Refused) as refused:
            seat.member.transact([Append(topic="out", records=[(b"k", bytes(2_000_000))], partition=0)], {AT: 1})
        assert refused.value.code == "log-disk-full"
        seat.member.close()
        assert values(read_to_end(log, "out")) == [b"fits"]
        assert log.committed("g", [AT]) == {AT: None}
        log.append([Append(topic="out", records=[(b"k", b"fits, too")], partition=0)])
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
            log.append([Append(topic="out", records=[(b"k", bytes([number]) * 50_000)], partition=0)])
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
        other.execute(f"PRAGMA user_version = {file.VERSION + 1}")
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
        log.append([Append(topic="out", records=[(b"k", b"whole")], partition=0)])
        committed = (before / "log.db-wal").stat().st_size
        log.append([Append(topic="out", records=[(b"k", bytes(100_000)), (b"k", b"torn")], partition=0)])
        torn.mkdir()
        for path in before.glob("log.db*"):
            shutil.copy(path, torn / path.name)
    full = (torn / "log.db-wal").stat().st_size
    assert full > committed
    os.truncate(torn / "log.db-wal", (committed + full) // 2)
    (torn / "log.db-shm").unlink()
    with closing(EmbeddedLog(torn)) as log:
        assert values(read_to_end(log, "out")) == [b"whole"]
