"""A container in a process of its own, begun by forking one that has everything loaded already.

`samovar run` as a person types it takes a second of loading; a kill loop starts it many times. The forked process runs
the very same command.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from samovar.changelog.kafka import member
from samovar.changelog.restore import restore
from samovar.common import failpoints
from samovar.service.cli.main import app
from samovar.tasks.runtime import container, slot_claim

LOADED = [
    "samovar.service.cli.main",
    "samovar.service.runtime.running",
    "samovar.service.config.loading",
    "samovar.service.topology.logs",
]
LOADED += ["samovar.changelog.embedded.log", "samovar.changelog.kafka.log"]
END_S = float(os.environ.get("SAMOVAR_PATIENCE_S", "60"))

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LOADED)


class NotEnded(AssertionError):
    """A process that should have ended did not."""


@dataclass(frozen=True)
class Running:
    """A container's process."""

    process: ForkServerProcess
    words: Path

    @property
    def text(self) -> str:
        """What it said so far."""
        return self.words.read_text() if self.words.exists() else ""

    def ends_within(self, seconds: float) -> bool:
        self.process.join(seconds)
        return self.process.exitcode is not None

    def ended(self) -> int:
        """Its exit code; a process that hangs fails the test."""
        if not self.ends_within(END_S):
            self.kill()
            raise NotEnded(f"still there after {END_S:.0f} s; it said:\n{self.text}")
        code = self.process.exitcode
        assert code is not None
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def hangs(self) -> bool:
        """Whether it is stopped, as SIGSTOP does it."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def wake(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def terminate(self) -> int:
        """Stop it once it is at work; before that it has not learned to stop yet."""
        deadline = time.monotonic() + END_S
        while "running partitions" not in self.text and not self.ends_within(0.01):
            assert time.monotonic() < deadline, self.text
        self.process.terminate()
        return self.ended()


@dataclass(frozen=True)
class Conditions:
    """What a container meets: `kill` is as SAMOVAR_KILL; the rest is the most records of a batch, the most bytes that
    a file may grow to, the seconds after which trouble with the log is told, and the seconds for which the outcome of
    a commit, or a log that comes back, is waited for; 0: as usual. A restore stands still while the folder `held` has
    a file of its partition. `host` is the name of its machine, `stale_s` for how long it waits for a sign of another
    container in its slot.
    """

    kill: str = ""
    poll: int = 0
    file_bytes: int = 0
    trouble_s: float = 0.0
    commit_s: float = 0.0
    held: Path | None = None
    host: str = ""
    stale_s: float = 0.0


USUAL = Conditions()


def start(config: Path, words: Path, *arguments: str, conditions: Conditions = USUAL) -> Running:
    """Run a service's container; what it says goes to the file `words`."""
    process = _context.Process(target=_run, args=(config, words, arguments, conditions), daemon=True)
    process.start()
    return Running(process, words)


def _run(config: Path, words: Path, arguments: tuple[str, ...], conditions: Conditions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ["SAMOVAR_KILL"] = conditions.kill
    os.environ["SAMOVAR_HOST"] = conditions.host
    slot_claim.STALE_S = conditions.stale_s or slot_claim.STALE_S
    importlib.reload(failpoints)  # it reads the variable when it is loaded
    if conditions.poll:
        os.environ["SAMOVAR_TUNABLES__POLL_RECORDS"] = str(conditions.poll)
        os.environ["SAMOVAR_TUNABLES__COMMIT_POLLS"] = "1"
    container.TROUBLE_S = conditions.trouble_s or container.TROUBLE_S
    if conditions.held is not None:
        hold_restores(conditions.held)
    if conditions.commit_s:
        container.LONGEST_WAIT_S = conditions.commit_s
        member.OFFSETS_S = member.COMMIT_S = member.ABORT_S = conditions.commit_s
    if conditions.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (conditions.file_bytes, conditions.file_bytes))
    app(["run", str(config), *arguments])


def hold_restores(held: Path) -> None:
    """A restore of a partition that is held reads a little, and gets no further."""
    advance = restore.Restore.advance
    os.environ["SAMOVAR_TUNABLES__RESTORE_RECORDS"] = os.environ["SAMOVAR_TUNABLES__RESTORE_ROWS"] = "1"

    def slowly(self: restore.Restore, timeout_s: float = 0.1) -> bool:
        is_held = self.records > 5 and (held / str(self.changelog.at.partition)).exists()
        return False if is_held else advance(self, timeout_s)

    restore.Restore.advance = slowly  # type: ignore[method-assign] # a condition of the test
