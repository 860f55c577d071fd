"""Folders and files that appear and vanish whole, whatever moment the process or the machine dies at, and that nobody
but this user can read: states and logs have events in the clear, and the secrets of the service.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

PART = ".part"  # ends the name of what is being made
GONE = ".gone"  # ends the name of what is being deleted
OTHERS = 0o077  # the rights of all but the owner


def make_private(path: Path) -> None:
    """Make a folder that only this user can look into, whatever the mask; one that is there is closed to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    close_to_others(path)


def make_private_file(path: Path) -> None:
    """The same of a file: empty where it is made here.

    One that is there is not opened: to close it would take away the locks that this process has on it, those of SQLite
    among them.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    close_to_others(path)


def close_to_others(path: Path) -> None:
    found = path.stat()
    if found.st_mode & OTHERS and found.st_uid == os.geteuid():
        path.chmod(found.st_mode & ~OTHERS & 0o7777)


def opened_private(path: str, flags: int) -> int:
    """For `open(..., opener=opened_private)`: a file that is made is for this user alone."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Put a file there whole: temporary name, fsync, rename."""
    part = path.with_name(path.name + PART)
    with open(part, "wb", opener=opened_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)


def rename_into_place(part: Path, path: Path) -> None:
    """Give a finished folder its name. Fails where a folder with content has that name already."""
    sync(part)
    part.rename(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Delete a folder so that a half-deleted one never goes by its name."""
    if not path.exists():
        return
    gone = path.with_name(path.name + GONE)
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    sync(path.parent)
    shutil.rmtree(gone)


def tidy(parent: Path) -> list[Path]:
    """Remove what a crash left half made or half deleted. Only for the one who writes here."""
    stale = [path for path in parent.glob("*") if PART in path.suffixes or GONE in path.suffixes]
    for path in stale:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return stale


def link_or_copy(source: Path, target: Path) -> None:
    """The same content under another name: a hard link where the file system has them."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)
