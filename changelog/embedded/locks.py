"""Lock files of the embedded log: who lives, and who owns which partition.

    FOLDER/locks/GROUP/slot-N        held by the live member of slot N
    FOLDER/locks/GROUP/partition-N   held by the member that owns partition N of all topics

A lock is flock's: it belongs to an open file, and the kernel drops it when the process ends, however it ends. Files
are never removed, so that all who look at a name look at one file. A file holds the process id of its last holder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_NAME_CHARACTERS = 200
_SLOT = re.compile(r"slot-[0-9]+")


@dataclass(frozen=True)
class HeldLock:
    """A lock that this process holds."""

    path: Path
    handle: int

    def is_current(self) -> bool:
        """Whether the file is still the one that others look at: a removed lock file guards nothing."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(self.handle)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        os.close(self.handle)


def folder_of(folder: Path, group: str) -> Path:
    """The folder of a group's locks."""
    name = quote(group, safe="")
    if len(name) > _NAME_CHARACTERS:
        name = f"{name[:100]}-{hashlib.sha256(group.encode()).hexdigest()}"
    return folder / "locks" / f"group-{name}"


def take(path: Path, wait_s: float = 0.0) -> HeldLock | None:
    """The lock, or None where another has it all this time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + wait_s
    while not _try_lock(handle, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            os.close(handle)
            return None
        time.sleep(0.005)
    os.truncate(handle, 0)
    os.pwrite(handle, b"%d\n" % os.getpid(), 0)
    return HeldLock(path, handle)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: Path) -> str:
    """The process that holds or held the lock, in words."""
    try:
        number = path.read_text().strip()
    except OSError:
        number = ""
    return f"process {number}" if number else "another process"


def live_slots(group_folder: Path) -> Sequence[int]:
    """The slots whose members live, in order."""
    try:
        names = [path.name for path in group_folder.iterdir()]
    except FileNotFoundError:
        return []
    slots = [int(name.removeprefix("slot-")) for name in names if _SLOT.fullmatch(name)]
    return [slot for slot in sorted(slots) if is_held(group_folder / f"slot-{slot}")]


def is_held(path: Path) -> bool:
    """Asked with a shared lock, so that two who ask at once do not take each other for the member."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
