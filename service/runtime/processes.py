"""Several containers of a service, a process each. Imports nothing heavy: the children do the work.

A child that was killed (by the system that ran out of memory, say) is started again in its slot at once: there its
partitions and its store still wait for it, and nobody else has to take them over. A child that ends with a refusal
ends the others too, so that anyone who watches them sees it. Children end with their parent, also when that is killed:
one that went on alone would hold its slot against the next start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from samovar.service.ops.log_output import stamped

LEAVE = signal.SIGUSR1  # "end, and do not come back": anyone who is left takes over at once
LOOK_S = 0.05
RESTARTS_MOST = 5  # of children that were killed, in RESTARTS_S: more than that is no accident
RESTARTS_S = 60.0
SERVE, ARCHIVE = -1, -2  # the slots of the processes that serve HTTP and copy into the archive: not containers
NAMES = {SERVE: "samovar serve", ARCHIVE: "samovar archive"}
ENDS_WITH_PARENT = "--ends-with-parent"  # of children: the parent holds the other end of their standard input


def run_processes(
    config: Path,
    containers: int,
    *,
    until_caught_up: bool,
    options: Sequence[str] = (),
    serve: Sequence[str] | None = None,
    archive: Sequence[str] | None = None,
    first: int = 0,
    metrics: str | None = None,
) -> int:
    """Several containers, a process each; with `serve` (its options) one that serves HTTP, and with `archive` one that
    copies. The first one's metrics are at the address `metrics`, each further one's at the next port.

    Ends when all containers have; the exit code of the first one that failed.
    """
    command = [sys.executable, "-m", "samovar.service.cli"]
    more = [*options, *(["--until-caught-up"] if until_caught_up else [])]

    def command_of(slot: int) -> list[str]:
        if slot == SERVE:
            return [*command, "serve", str(config), ENDS_WITH_PARENT, *(serve or ())]
        if slot == ARCHIVE:
            own = ["--set", f"run.slot={first}", *(archive or ())]
            if metrics is not None:
                own += ["--metrics", port_after(metrics, containers)]
            return [*command, "archive", str(config), "--follow", ENDS_WITH_PARENT, *own]
        own = ["--containers", "1", "--slot", str(slot), ENDS_WITH_PARENT]
        if metrics is not None:
            own += ["--metrics", port_after(metrics, slot - first)]
        return [*command, "run", str(config), *own, *more]

    children = Children(command_of)
    with stopping(children.stop, partial(children.stop, LEAVE)):
        extra = [slot for slot, own in ((SERVE, serve), (ARCHIVE, archive)) if own is not None]
        return children.run(range(first, first + containers), extra)


def port_after(address: str, count: int) -> str:
    """
    >>> port_after("9400", 2), port_after("0.0.0.0:9400", 1)
    ('9402', '0.0.0.0:9401')
    """
    host, colon, port = address.rpartition(":")
    return f"{host}{colon}{int(port) + count}"


class Children:
    """The source of truth for which containers run, and whether they were asked to stop."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self._command = command
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = False
        self._restarts: list[float] = []

    def run(self, slots: Iterable[int], extra: Iterable[int] = ()) -> int:
        """Start them all, and wait for the containers; what runs next to them is ended then."""
        others = set(extra)
        for slot in [*slots, *others]:
            if not self._stopping:
                self._start(slot)
        worst = 0
        while self._running:
            if others and not self._running.keys() - others:
                self.stop()
            for slot in list(self._running):
                code = self._running[slot].poll()
                if code is not None:
                    stdin = self._running.pop(slot).stdin
                    assert stdin is not None
                    stdin.close()
                    worst = worst or self._ended(slot, code)
            time.sleep(LOOK_S)
        return worst

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the containers for an end, by this signal, and what runs next to them by SIGTERM."""
        self._stopping = True
        for slot, process in list(self._running.items()):
            process.send_signal(signal.SIGTERM if slot < 0 else number)

    def _start(self, slot: int) -> None:
        self._running[slot] = subprocess.Popen(self._command(slot), stdin=subprocess.PIPE)
        if self._stopping:  # it was asked for while the process was being made
            self._running[slot].terminate()

    def _ended(self, slot: int, code: int) -> int:
        """The exit code that this end makes, 0 where it is none."""
        if code in (-signal.SIGTERM, -LEAVE) and self._stopping:
            return 0  # so early that it had not begun
        if code < 0 and not self._stopping:
            now = time.monotonic()
            self._restarts = [at for at in self._restarts if now - at < RESTARTS_S] + [now]
            if len(self._restarts) <= RESTARTS_MOST:
                who, name = NAMES.get(slot, f"container {slot}"), signal.Signals(-code).name
                sys.stderr.write(stamped(f"{who} was ended by {name}; it is started again\n", time.time()))
                sys.stderr.flush()
                self._start(slot)
                return 0
        if code:
            self.stop()
        return code if code >= 0 else 128 - code


def end_with_parent() -> None:
    """Of a child: ask for an end, as SIGTERM does, as soon as the parent is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass  # nothing is ever said there
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_, end=end: end()) for number, end in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopping(stop: Callable[[], None], leave: Callable[[], None]) -> AbstractContextManager[None]:
    """While this lasts, SIGTERM and Ctrl-C ask for an end and do not make one; SIGUSR1 asks for an end for good."""
    return _handling({signal.SIGTERM: stop, signal.SIGINT: stop, LEAVE: leave})


def nothing_begun() -> AbstractContextManager[None]:
    """While this lasts there is nothing to be finished: SIGTERM and SIGUSR1 are an end at once, and a good one."""

    def end() -> None:
        # Not by an exception: the import of a large package, where this mostly comes, may swallow one and go on.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    return _handling({signal.SIGTERM: end, LEAVE: end})
