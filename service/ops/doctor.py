"""`samovar doctor CONFIG`: what a service stands on, looked at one by one. It changes nothing.

Each finding is `ok`, `warn` (works now, may not tomorrow) or `fail` (will not work, or not rightly), and says what to
do. The document of `--json`:

    {"ok": bool, "findings": [{"about", "state": "ok" | "warn" | "fail", "what", "fix"}],
     "counts": {"ok", "warn", "fail"}}
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from samovar import __version__
from samovar.changelog.broker.jars import OLDEST_JAVA, find_java
from samovar.changelog.embedded.locks import holder, is_held
from samovar.changelog.formats.heartbeat import HeartbeatRecord, read_heartbeats
from samovar.changelog.log import Log
from samovar.changelog.schema_registry import Registry, RegistryUnavailable
from samovar.common.errors import LogUnavailable, Refused
from samovar.common.folders import OTHERS, PART
from samovar.common.texts import counted
from samovar.native.kernel import kernel
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.ops.archive import archive_status, duration
from samovar.service.topology.acls import HTTP, SERVICE, AclEntry, rights
from samovar.service.topology.logs import opened
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.ruleset import rules_of
from samovar.service.topology.topics import (
    GROWN_FIX,
    PlannedTopic,
    bootstrap_of,
    check,
    counted_topics,
    grown_inputs,
    partitions_of,
    plan,
)
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
SKEW_MS = 2_000  # between two clocks, from which on it is worth a word
SKEW_FAIL_MS = 60_000
ABOUT = 12  # characters, of the column that says what it is about
INDENT = " " * (ABOUT + 8)

_Granted = Mapping[str, frozenset[str] | None]  # what this user may do with each; None where nobody could say


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


def examine(config: Path) -> Iterator[Diagnosis]:
    """Findings as they come; what cannot be looked at because of an earlier one is left out."""
    yield from versions()
    yield java()
    try:
        settings = load_service(config)
    except Refused as error:
        yield Diagnosis("service file", FAIL, str(error), "fix the file; nothing else can be looked at before")
        return
    yield fine("service file", f"{settings.service}, {counted(len(settings.streams), 'stream')}, {config}")
    yield from state(settings)
    for name, stream in settings.streams.items():
        if stream.registry is not None:
            yield registry(name, f"{stream.topic}-value", Registry(stream.registry.settings()))
    missing = embedded(settings)
    yield from missing
    if any(each.state == FAIL for each in missing) or not has_log(settings):
        yield rules(settings, None)
        return
    try:
        with opened(settings) as log:
            found = ask_log(settings, log)
    except LogUnavailable as error:
        found = [_unreachable(settings, error), rules(settings, None)]
    except Refused as error:
        found = [refused("log", error), rules(settings, None)]
    yield from found


def _unreachable(settings: ServiceFile, error: LogUnavailable) -> Diagnosis:
    fix = f"see that a broker runs at {bootstrap_of(settings)} and can be reached from here"
    return Diagnosis("log", FAIL, str(error), fix)


def ask_log(settings: ServiceFile, log: Log) -> list[Diagnosis]:
    """All that only the log can answer."""
    settings = with_published_rules(settings, log)
    are_fine = rules(settings, None).state == OK  # without rules nobody knows which further stages there are
    found = [*cluster(settings, plan(settings, stages=are_fine))]
    if any(each.state == FAIL for each in found):
        return [*found, rules(settings, None)]
    existing = log.topics(counted_topics(settings))
    specs = plan(settings, existing, stages=are_fine)
    found += topics(settings, log, specs)
    partitions = partitions_of(settings, existing)
    found.append(rules(settings, partitions))
    members = log.members(settings.service)
    found.append(fine("containers", f"{counted(len(members), 'container')} in the group"))
    found += clocks(settings, read_heartbeats(log, settings.service), int(time.time() * 1000))
    found += limits(settings, partitions)
    found += stores(settings)
    found += locks(settings, bool(members))
    found += archive(settings, log)
    return found


def archive(settings: ServiceFile, log: Log) -> list[Diagnosis]:
    """Whether records are copied before retention takes them."""
    if settings.archive is None:
        return []
    try:
        found = archive_status(settings, log, int(time.time() * 1000))
    except Refused as error:
        return [refused("archive", error)]
    fix = "see that `samovar run` or `samovar archive --follow` runs, and what it says"
    lost = [f"{each.topic}/{each.partition}" for each in found if each.lost is not None]
    late = [each for each in found if each.is_late]
    if lost:
        what = f"retention took records of {', '.join(lost)} that nobody has any more"
        return [Diagnosis("archive", FAIL, what, "`samovar archive --status` says which; make `retention` longer")]
    if late:
        first = min(late, key=lambda each: each.left_ms or 0)
        what = f"{counted(len(late), 'partition')} behind; retention takes what is not copied of {first.topic} in"
        return [Diagnosis("archive", WARN, f"{what} {duration(max(0, first.left_ms or 0))}", fix)]
    behind = sum(each.lag for each in found)
    return [fine("archive", f"{settings.archive.to}, {behind:,} offsets behind in {counted(len(found), 'partition')}")]


def cluster(settings: ServiceFile, specs: Sequence[PlannedTopic]) -> Iterator[Diagnosis]:
    """Brokers, their version, and what this user may do there."""
    if settings.log.kafka is None:
        yield fine("log", f"embedded, {settings.log.embedded}")
        yield fine("rights", "the embedded log has none: who may write its folder may do all")
        return
    from samovar.changelog.kafka.facts import client_version, facts_of  # noqa: PLC0415 - its client takes long to load

    try:
        facts = facts_of(settings.log.kafka.librdkafka(), [spec.name for spec in specs], settings.service)
    except LogUnavailable as error:
        yield _unreachable(settings, error)
        return
    version = f"Kafka {facts.version}" if facts.version else "Kafka, which does not say its version over this protocol"
    yield fine("log", f"{version}, {counted(len(facts.brokers), 'broker')} ({', '.join(facts.brokers)})")
    yield fine("client", f"librdkafka {client_version()}")
    yield from _replicas(settings, len(facts.brokers))
    if facts.authorizer == "":
        yield fine("rights", "the cluster has no authorizer: everybody may do all")
        return
    groups = {settings.service: facts.group}
    yield from _missing_rights(rights(settings, specs), facts.topics, groups, facts.on_cluster)


def _replicas(settings: ServiceFile, brokers: int) -> Iterator[Diagnosis]:
    if settings.replication > brokers:
        what = f"`replication: {settings.replication}` with {counted(brokers, 'broker')}: topics cannot be made"
        yield Diagnosis("replication", FAIL, what, f"write `replication: {brokers}`, or add brokers")
    elif settings.replication == 1:
        what = "one copy of everything: a broker's disk that is lost loses the service's state and alerts"
        yield Diagnosis("replication", WARN, what, "write `replication: 3` where there are three brokers")


def _missing_rights(
    wanted: Sequence[AclEntry], topics: _Granted, groups: _Granted, on_cluster: frozenset[str]
) -> Iterator[Diagnosis]:
    """Containers do not run without theirs; the HTTP API may be another user's."""
    granted = {"topic": topics, "group": groups, "cluster": {"kafka-cluster": on_cluster}}
    fix = "grant them: `samovar topics plan --commands` prints how"
    if lacking := _lacking(SERVICE, wanted, granted):
        yield Diagnosis("rights", FAIL, f"this user lacks {'; '.join(lacking)}", fix)
    else:
        yield fine("rights", "this user may do all that the service needs; of transactional ids nobody can be asked")
    if lacking := _lacking(HTTP, wanted, granted):
        fix = f"nothing, where `samovar serve` runs as another user; else {fix}"
        yield Diagnosis("rights", WARN, f"for `samovar serve` this user lacks {'; '.join(lacking)}", fix)


def _lacking(who: str, wanted: Sequence[AclEntry], granted: Mapping[str, _Granted]) -> list[str]:
    """What somebody needs and this user has not, where the cluster could be asked."""
    found = []
    for right in wanted:
        has = granted.get(right.resource, {}).get(right.name)
        if right.who == who and has is not None:
            missing = [each for each in right.operations if each not in has and each != "CREATE"]
            found += [f"{', '.join(missing)} on {right.resource} {right.name}"] if missing else []
    return found


def topics(settings: ServiceFile, log: Log, specs: Sequence[PlannedTopic]) -> Iterator[Diagnosis]:
    found = check(log, specs, bootstrap_of(settings))
    made = [each for each in found if each.code == "topic-missing" and settings.topics == "create"]
    for each in found:
        if each not in made:
            yield Diagnosis("topics", FAIL, f"{each.code}: {each.what}", each.fix)
    if made:
        names = ", ".join(each.topic for each in made)
        yield fine("topics", f"{counted(len(made), 'topic')} not there yet, which `samovar run` makes: {names}")
    grown = grown_inputs(settings, log)
    for each_grown in grown:
        yield Diagnosis("topics", WARN, each_grown.text, GROWN_FIX)
    if not found and not grown:
        parts = counted(specs[0].partitions, "partition")
        yield fine("topics", f"all {len(specs)} are as they should be, {parts} each input")


def registry(stream: str, subject: str, asked: Registry) -> Diagnosis:
    """Whether a stream's schema registry answers, and knows its schema."""
    try:
        number = asked.latest_number(subject)
        usable = number is None or asked.find(number) is not None
    except RegistryUnavailable as error:
        fix = "see that it runs and can be reached from here: containers wait for it, and end when it stays away"
        return Diagnosis("registry", FAIL, str(error), fix)
    except Refused as error:
        return refused("registry", error)
    if number is None:
        fix = f"register the schema of {stream} there, unless writers name it otherwise"
        return Diagnosis("registry", WARN, f"{asked.place} answers, and has nothing under {subject}", fix)
    if not usable:
        fix = "messages of it would be dead letters: register a schema that can be read"
        return Diagnosis("registry", FAIL, asked.missing(number), fix)
    return fine("registry", f"{asked.place} answers; {subject} is schema {number}")


def rules(settings: ServiceFile, partitions: int | None) -> Diagnosis:
    try:
        found = rules_of(settings, partitions)
    except Refused as error:
        return refused("rules", error)
    return fine("rules", f"{counted(len(found.rules), 'rule')} without errors")


def clocks(settings: ServiceFile, seen: dict[int, HeartbeatRecord], now_ms: int) -> Iterator[Diagnosis]:
    """Each container's clock against the broker's, by what it told last; this machine's by what the log has already."""
    if settings.log.embedded is not None:
        yield fine("clock", "the embedded log goes by this machine's own")
        return
    skews = {slot: each.log_ms - each.metadata.time_ms for slot, each in seen.items()}
    wrong = {slot: skew_ms for slot, skew_ms in skews.items() if abs(skew_ms) > SKEW_MS}
    for slot, skew_ms in wrong.items():
        host, side = seen[slot].metadata.host, "behind" if skew_ms > 0 else "ahead of"
        what = f"the clock of container {slot} on {host} is {abs(skew_ms) / 1000:,.1f} s {side} the broker's"
        yield Diagnosis("clock", FAIL if abs(skew_ms) > SKEW_FAIL_MS else WARN, what, f"set the clock of {host} by NTP")
    newest = max((each.log_ms for each in seen.values()), default=None)
    if newest is not None and newest - now_ms > SKEW_MS:
        what = f"this machine's clock is at least {(newest - now_ms) / 1000:,.1f} s behind the broker's"
        yield Diagnosis("clock", WARN, what, "set it by NTP")
    elif not wrong:
        within = f"within {SKEW_MS / 1000:g} s of the broker's"
        yield fine("clock", within if seen else "no container told a time yet to compare with")


# ---------------------------------------------------------------- this machine


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


# ---------------------------------------------------------------- showing it


def document(findings: Sequence[Diagnosis]) -> dict[str, Any]:
    counts = Counter(each.state for each in findings)
    return {
        "ok": not counts[FAIL],
        "findings": [asdict(each) for each in findings],
        "counts": {state: counts[state] for state in (OK, WARN, FAIL)},
    }


def worst(findings: Sequence[Diagnosis], *, strict: bool) -> bool:
    """Whether something is wrong; a warning counts if `strict`."""
    return any(each.state == FAIL or (strict and each.state == WARN) for each in findings)


def finding_lines(finding: Diagnosis) -> list[str]:
    """A finding for people."""
    first, *others = finding.what.splitlines() or [""]
    lines = [f"{finding.state:<4}  {finding.about:<{ABOUT}}  {first}", *(INDENT + each for each in others)]
    return lines + ([f"{INDENT}fix: {finding.fix}"] if finding.fix else [])
