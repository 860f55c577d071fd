"""What is sampled in a soak: processes, stores, the brokers' logs, lag, and how late alerts are."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

import numpy as np

from benchmarks import bed
from benchmarks.bed import Bed, partitions_of
from benchmarks.processes import Watched, command_of, descendants
from benchmarks.soak_trend import Measure
from samovar.service.runtime.processes import ENDS_WITH_PARENT

MB = 1 << 20
BLOCK = 512  # the unit of st_blocks
POLL_S = 0.1

MEASURES = (
    Measure("container memory", "MB", 0.05, 5.0),
    Measure("container descriptors", "", 0.02, 2.0),
    Measure("container threads", "", 0.02, 1.0),
    Measure("HTTP memory", "MB", 0.05, 5.0),
    Measure("HTTP descriptors", "", 0.02, 2.0),
    Measure("HTTP threads", "", 0.02, 1.0),
    Measure("stores on disk", "MB", 0.10, 2.0),
    Measure("log on disk", "MB", 0.10, 50.0),
    Measure("latency, p50", "ms", 0.10, 5.0),
    Measure("latency, p99", "ms", 0.25, 50.0),
    Measure("lag", "events", 0.25, 5_000.0),
)


@dataclass
class Samples:
    """The source of truth for what was seen: a column per measure, and what was done when."""

    times_s: list[float] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=lambda: {each.name: [] for each in MEASURES})
    marks: list[tuple[float, str]] = field(default_factory=list)

    def add(self, at_s: float, row: dict[str, float]) -> None:
        self.times_s.append(round(at_s, 2))
        for name, column in self.columns.items():
            column.append(row[name])

    def to_json(self) -> dict[str, object]:
        """None stands for what could not be seen."""
        columns = {
            name: [None if isnan(value) else round(value, 2) for value in column]
            for name, column in self.columns.items()
        }
        return {"times_s": self.times_s, "columns": columns, "marks": self.marks}

    def since(self, at_s: float) -> tuple[list[float], dict[str, list[float]]]:
        """Only what was sampled from then on."""
        first = next((number for number, at in enumerate(self.times_s) if at >= at_s), len(self.times_s))
        return self.times_s[first:], {name: column[first:] for name, column in self.columns.items()}


# ---------------------------------------------------------------- processes and folders


@dataclass(frozen=True)
class ProcessSample:
    memory_mb: float
    descriptors: float
    threads: float


GONE = ProcessSample(float("nan"), float("nan"), float("nan"))


def container_of(service: Watched) -> int:
    """The process that does the work: `samovar run` with HTTP starts it, and one that serves."""
    return _child(service, ENDS_WITH_PARENT, "run")


def http_of(service: Watched) -> int:
    return _child(service, ENDS_WITH_PARENT, "serve")


def _child(service: Watched, *words: str) -> int:
    commands = {pid: command_of(pid) for pid in descendants(service.process.pid)}
    return next((pid for pid, command in commands.items() if all(word in command for word in words)), 0)


def sample_process(pid: int) -> ProcessSample:
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        count = len(list((folder / "fd").iterdir()))
    except OSError:
        return GONE
    found = {name: int(value) for name, value in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
    return ProcessSample(found.get("VmRSS", 0) / 1024, count, found.get("Threads", 0))


def size_mb(folders: Sequence[Path]) -> float:
    """What all files take on the disk, where a broker's indexes are mostly holes; those that go away do not count."""
    return sum(_size(path) for folder in folders for path in folder.rglob("*")) / MB


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * BLOCK if path.is_file() else 0
    except OSError:
        return 0


# ---------------------------------------------------------------- the log


def lag_of(at: Bed, group: str, topic: str) -> int:
    """The ends are asked for last: what comes in between counts, and none is below nothing."""
    committed = at.log.committed(group, partitions_of(topic))
    return sum(end - (committed[place] or 0) for place, end in bed.ends_of(at.log, topic).items())


def records_ever(at: Bed, topic: str) -> int:
    return sum(bed.ends_of(at.log, topic).values())


@dataclass
class Alerts:
    """Alerts of one rule as a reader of their topic sees them: how late, and whether one came twice."""

    rule: str
    count: int = 0
    twice: int = 0
    _late_ms: list[float] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, values: Sequence[bytes], now_ms: float) -> None:
        with self._lock:
            for alert in map(json.loads, values):
                if alert["rule"] == self.rule:
                    self._late_ms.append(now_ms - alert["at"])
                    self._count(hash(alert["id"]))

    def _count(self, id: int) -> None:
        self.count += 1
        self.twice += id in self._seen
        self._seen.add(id)

    def percentiles(self) -> tuple[float, float]:
        """Of those that came since this was last asked: p50 and p99, in ms."""
        with self._lock:
            late, self._late_ms = self._late_ms, []
        if not late:
            return float("nan"), float("nan")
        return float(np.percentile(late, 50)), float(np.percentile(late, 99))


@contextmanager
def reading(at: Bed, topic: str, alerts: Alerts) -> Iterator[None]:
    """From now on, in a thread, so that an alert's time is when it could be read."""
    ended, ends = threading.Event(), bed.ends_of(at.log, topic)

    def read() -> None:
        reader = at.log.reader(ends)
        while not ended.is_set():
            for records in reader.poll(10_000, POLL_S):
                alerts.take([value for _, value in records.pairs() if value is not None], time.time() * 1000)
        reader.close()

    thread = threading.Thread(target=read, name="alerts")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
