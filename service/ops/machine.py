"""What of a machine a service stands on, for `samovar doctor`: versions, folders, disks, limits, locks."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samovar import __version__
from samovar.changelog.broker.jars import OLDEST_JAVA, find_java
from samovar.changelog.embedded.locks import holder, is_held
from samovar.common.errors import Refused
from samovar.common.folders import OTHERS, PART
from samovar.common.texts import counted
from samovar.native.kernel import kernel
from samovar.service.config.models import ServiceFile
from samovar.state.errors import StoreError
from samovar.state.soundness import check_sound, holds_rows
from samovar.state.store_lock import is_open

OK, WARN, FAIL = "ok", "warn", "fail"
FREE_LEAST = 1 << 30
READ_BYTES = 1 << 30  # of a store's tables, up to which all of its rows are read
FILES_LEAST = 4_096
FILES_A_STORE = 32  # next to its table files
FAR = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"}
FLEETING = {"tmpfs", "ramfs"}
LIBRARIES = ("confluent-kafka", "rocksdict", "numpy", "pyarrow", "pyspark")


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at."""

    about: str
    state: str
    what: str
    fix: str = ""


def fine(about: str, what: str) -> Diagnosis:
    return Diagnosis(about, OK, what)


def refused(about: str, error: Refused) -> Diagnosis:
    return Diagnosis(about, FAIL, f"{error.code}: {error.what}", error.hint)


def versions() -> Iterator[Diagnosis]:
    parts = []
    for name in LIBRARIES:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"no {name}")
    own = f"samovar {__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield fine("versions", f"{own}; {', '.join(parts)}")
    try:
        kernel()
    except OSError as error:
        what = f"the compiled kernel does not load: {error}"
        yield Diagnosis("kernel", FAIL, what, "install Samovar again, or `make kernel`")
    else:
        yield fine("kernel", "loads")


def java() -> Diagnosis:
    """Only trials and Spark need it, so that its absence is worth no warning; one that is there and of no use is."""
    try:
        found = find_java()
    except Refused as error:
        whom = f"{error.what}; only `samovar kafka` and Spark need it, {OLDEST_JAVA} or later"
        return fine("java", whom) if error.code == "java-missing" else Diagnosis("java", WARN, whom, error.hint)
    return fine("java", f"{found.version}, {found.path}")


def has_log(settings: ServiceFile) -> bool:
    return settings.log.embedded is None or (settings.log.embedded / "log.db").exists()


def embedded(settings: ServiceFile) -> list[Diagnosis]:
    """The folder of the embedded log, before it is opened: opening would make it."""
    folder = settings.log.embedded
    if folder is None:
        return []
    found = [*_folder("log folder", folder)]
    if not has_log(settings):
        found.append(fine("log", f"embedded, not made yet: {folder}; `samovar produce` and `samovar run` make it"))
    kind = file_system(folder)
    if kind in FAR:
        what = f"{folder} is on a network file system ({kind}), where the embedded log's locks cannot be relied on"
        found.append(Diagnosis("log folder", FAIL, what, "put it on a disk of this machine, or use Kafka"))
    return found


def state(settings: ServiceFile) -> Iterator[Diagnosis]:
    folder = settings.state
    yield from _folder("state folder", folder)
    kind = file_system(folder)
    if kind in FAR:
        what = f"{folder} is on a network file system ({kind}): slow, and its locks cannot be relied on"
        yield Diagnosis("state folder", WARN, what, "put it on a disk of this machine")
    elif kind in FLEETING:
        what = f"{folder} is in memory ({kind}): after a reboot all state is restored from the changelog"
        yield Diagnosis("state folder", WARN, what, "put it on a disk of this machine")
    used = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # files that go meanwhile count nothing
            used += path.lstat().st_size if path.is_file() else 0
    yield _space(folder, used)


def _folder(about: str, folder: Path) -> Iterator[Diagnosis]:
    there = nearest(folder)
    if is_read_only(there):
        fix = f"mount it for writing, or put the {about} elsewhere"
        yield Diagnosis(about, FAIL, f"{there} is on a file system that is mounted read-only", fix)
        return
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"give this user the right to write it, or run as its owner: chown {os.geteuid()} {there}"
        yield Diagnosis(about, FAIL, f"{there} cannot be written by user {os.geteuid()}", fix)
        return
    owner = there.stat().st_uid
    if folder.exists() and owner not in (os.geteuid(), 0) and os.geteuid() == 0:
        what = f"{folder} belongs to user {owner}, and this is root: what root writes there, that user cannot"
        yield Diagnosis(about, WARN, what, f"run as user {owner}")
    elif not folder.exists():
        yield fine(about, f"{folder} is not there yet, and can be made")
    else:
        kind = file_system(folder)
        yield fine(about, f"{folder}, writable" + (f", {kind}" if kind else ""))
        # What others can read: events in the clear, and of the embedded log the service's secrets.
        paths = sorted(folder.iterdir()) if folder.stat().st_mode & OTHERS else []
        inside = [path for path in paths if path.lstat().st_mode & OTHERS and not path.is_symlink()]
        if inside:
            what = f"other users of this machine can look into {folder}, and at {inside[0].name} in it"
            yield Diagnosis(about, WARN, what, f"chmod -R go= {folder}")


def is_read_only(there: Path) -> bool:
    return bool(os.statvfs(there).f_flag & os.ST_RDONLY)


def nearest(path: Path) -> Path:
    """The path, or the first folder above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())


def file_system(path: Path) -> str | None:
    """The kind of file system that a path is on, where this machine tells it."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    here = nearest(path).resolve()
    mounts = [(Path(parts[1]), parts[2]) for parts in map(str.split, lines) if len(parts) >= 3]
    fitting = [(len(mount.parts), kind) for mount, kind in mounts if mount == here or mount in here.parents]
    return max(fitting, key=lambda each: each[0])[1] if fitting else None


def _space(folder: Path, used: int) -> Diagnosis:
    """A restore builds a store next to the old one, so that as much again must fit."""
    free = shutil.disk_usage(nearest(folder)).free
    text = f"{_size(free)} free, state has {_size(used)}"
    fix = "free some space, or move `state` to a larger disk"
    if free < max(FREE_LEAST // 8, used // 8):
        return Diagnosis("disk", FAIL, text, fix)
    if free < max(FREE_LEAST, used):
        return Diagnosis("disk", WARN, f"{text}: a restore needs as much again", fix)
    return Diagnosis("disk", OK, text)


def _size(size: int) -> str:
    """Bytes for people.

    >>> _size(512), _size(3_500_000), _size(2 << 40)
    ('512 B', '3.5 MB', '2,199.0 GB')
    """
    for unit, word in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {word}"
    return f"{size} B"


def limits(settings: ServiceFile, partitions: int) -> Iterator[Diagnosis]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tables = sum(1 for _ in settings.state.rglob("*.sst"))
    wanted = max(FILES_LEAST, 2 * tables + partitions * FILES_A_STORE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        what = f"{soft:,} files may be open; stores of {counted(partitions, 'partition')} may need {wanted:,}"
        ceiling = "" if hard == resource.RLIM_INFINITY or hard >= wanted else f" (the hard limit is {hard:,})"
        yield Diagnosis("open files", WARN, what, f"ulimit -n {wanted}, or LimitNOFILE={wanted} in systemd{ceiling}")
    else:
        yield fine("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} may be open")


def stores(settings: ServiceFile) -> Iterator[Diagnosis]:
    """Whether a container would open the stores of this machine, and could read all of their rows."""
    found = sorted(folder for folder in settings.state.rglob("store") if holds_rows(folder))
    unread = damaged = 0
    for folder in found:
        try:
            unread += not check_sound(folder, rows=True, most_bytes=READ_BYTES)
        except StoreError as error:
            damaged += 1
            yield Diagnosis("stores", FAIL, f"{error.code}: {error.what}: {error.where}", error.hint)
        except OSError as error:
            yield Diagnosis("stores", WARN, f"{folder} cannot be looked at: {error}", "give this user the right to")
    if found and not damaged:
        more = f"; the rows of {unread} are many and were not all read: `samovar verify` does" if unread else ""
        yield fine("stores", f"{counted(len(found), 'store')} can be opened and read{more}")


def locks(settings: ServiceFile, has_members: bool) -> Iterator[Diagnosis]:
    """Locks that nobody should hold, and work that was left halfway. A lock goes with its process, so that one that
    is held has a process behind it.
    """
    state, wrong = settings.state, dict[str, str]()
    restores = is_held(state / "restore.lock")
    if restores:
        what = f"a restore runs on {state}: {holder(state / 'restore.lock')}"
        wrong[what] = "wait for it, or stop it: it can be stopped at any moment"
    held = [lock.parent for lock in sorted(state.rglob("store/LOCK")) if is_open(lock.parent)]
    if held and not has_members:
        what = f"{counted(len(held), 'store')} ({held[0]}, ...) open in a process, and no container is in the group"
        wrong[what] = f"find it: fuser {held[0] / 'LOCK'}; one that hangs must be ended"
    if not restores and (halves := sorted(state.glob(f"**/restore-*{PART}"))):
        wrong[f"a restore was left halfway: {halves[0]}"] = "`samovar restore` goes on with it"
    if not restores and (halves := sorted(state.glob(f"**/rewind{PART}"))):
        wrong[f"a rewind was left halfway: {halves[0]}"] = "run the same `samovar rewind` again"
    yield from [Diagnosis("locks", WARN, what, fix) for what, fix in wrong.items()]
    if not wrong:
        yield fine("locks", "none held by strangers, nothing left halfway")
