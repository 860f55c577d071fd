"""Processes under measurement: what they said and when, the processor time and the memory that they took."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S = 900.0  # until something that was waited for must have happened
STOP_S = 90.0
LAST_LINES = 15


class FailedError(Exception):
    """A run that gave no figure: the text says which process, and what it said last."""


@dataclass(frozen=True)
class Usage:
    """Of a process and its children: processor time, and the peak memory of the largest of them."""

    cpu_s: float
    peak_mb: float


class Watched:
    """A process and what it said. The source of truth for the moment of every line, by the monotonic clock."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command, self.log = command, log
        self.lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("a") as kept:
            for line in self.process.stdout:
                with self._news:
                    self.lines.append((time.monotonic(), line.rstrip()))
                    self._news.notify_all()
                kept.write(line)
        with self._news:
            self._news.notify_all()

    def said(self, pattern: str) -> Iterator[tuple[float, re.Match[str]]]:
        """When it said this, and how."""
        for at, line in list(self.lines):
            found = re.search(pattern, line)
            if found is not None:
                yield at, found

    def until_said(self, pattern: str, times: int = 1, seconds: float = WAIT_S) -> float:
        """Wait until it has said this so many times; returns when that was."""
        deadline = time.monotonic() + seconds
        with self._news:
            while len(moments := [at for at, _ in self.said(pattern)]) < times:
                left = deadline - time.monotonic()
                if left <= 0 or not self._reading.is_alive():
                    raise FailedError(self.story(f"never said `{pattern}`"))
                self._news.wait(min(left, 0.5))
        return moments[times - 1]

    def until(self, condition: Callable[[], bool], what: str, every_s: float = 0.05, seconds: float = WAIT_S) -> float:
        """Wait until something holds that is seen from outside; returns when it was seen."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise FailedError(self.story(f"ended or timed out before {what}"))
            time.sleep(every_s)
        return time.monotonic()

    def story(self, what: str) -> str:
        told = "\n  ".join(line for _, line in self.lines[-LAST_LINES:])
        return f"{' '.join(self.command[:6])} ...: {what}\n  {told}"

    def usage(self) -> Usage:
        """So far."""
        tree = descendants(self.process.pid)
        return Usage(sum(map(cpu_s, tree)), max(map(peak_mb, tree), default=0.0))

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.process.terminate()
        self.until_ended()

    def until_ended(self) -> None:
        """One that was asked to end, and does not, is killed."""
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise FailedError(self.story(f"did not end within {STOP_S:.0f} s")) from None
        self._reading.join()

    def kill(self) -> None:
        """End it and its children as a power failure would."""
        for pid in descendants(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reading.join()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [pid, *(below for child in " ".join(told).split() for below in descendants(int(child)))]


def cpu_s(pid: int) -> float:
    """Of a process and of those children that it has seen end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def command_of(pid: int) -> list[str]:
    """The words that a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").split("\0")
    except OSError:
        return []


def busy_s() -> float:
    """Processor time that all of the machine was not idle for."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, *interrupts = map(int, fields)
    return (user + nice + system + sum(interrupts[:2])) / TICKS


def peak_mb(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
