"""Folders and files that appear and vanish whole, whatever moment the process or the machine dies at."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PART = ".part"  # ends the name of what is being made
GONE = ".gone"  # ends the name of what is being deleted


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
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)


def reveal(part: Path, path: Path) -> None:
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
