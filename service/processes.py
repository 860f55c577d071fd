"""Several containers of a service, a process each. Imports nothing heavy: the children do the work."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def run_processes(config: Path, containers: int, *, until_caught_up: bool) -> int:
    """Several containers, a process each. Ends when all have; one that fails ends the others."""
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(config)]
    more = ["--until-caught-up"] if until_caught_up else []
    started = [subprocess.Popen([*command, "--slot", str(slot), *more]) for slot in range(containers)]

    def stop() -> None:
        for process in started:
            process.terminate()

    with stopping(stop):
        return _wait(started, stop)


def _wait(started: list[subprocess.Popen[bytes]], stop: Callable[[], None]) -> int:
    worst = 0
    left = list(started)
    while left:
        for process in list(left):
            try:
                code = process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            left.remove(process)
            if code and not worst:
                worst = code if code > 0 else 128 - code
                stop()
    return worst


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """While this lasts, SIGTERM and Ctrl-C ask for an end and do not make one."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
