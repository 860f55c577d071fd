"""A Spark cluster of a master and two workers, with an executor each, that runs commands and loses executors.

A process has one Spark, and that of the other tests is local: so this one is in a process of its own, which is told by
lines of JSON what to run. Executors are processes that share nothing with it but the file system and the broker.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.project import ROOT

MASTER = "local-cluster[2,1,1024]"
EXECUTOR = b"CoarseGrainedExecutorBackend"
PATIENCE_S = 240.0


@dataclass(frozen=True)
class ClusterResult:
    """What a command ended with."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass
class SparkCluster:
    """The driver's process, and the gate at which workers can be held."""

    driver: subprocess.Popen[str]
    gate: Path

    def run(self, *arguments: object) -> ClusterResult:
        """A command of Samovar's; its `--master` is that of the session that is there."""
        self._tell(list(map(str, arguments)))
        return ClusterResult(*self._answer())

    def run_and_lose_an_executor(self, *arguments: object, at: str = "") -> ClusterResult:
        """The same; the executor of the first worker that is held in the middle of a task, or at a failpoint, is
        killed.
        """
        with self._losing(at):
            self._tell(list(map(str, arguments)))
        return ClusterResult(*self._answer())

    def call(self, function: str, *arguments: object, loses: bool = False) -> Any:
        """What a function `module:name` makes of the session, as JSON. `loses`: while an executor is killed."""
        with self._losing() if loses else nullcontext():
            self._tell([f"call:{function}", *map(str, arguments)])
        (found,) = self._answer()
        return found

    def _tell(self, line: list[str]) -> None:
        assert self.driver.stdin is not None
        self.driver.stdin.write(json.dumps(line) + "\n")
        self.driver.stdin.flush()

    def _has_answered(self, timeout_s: float) -> bool:
        assert self.driver.stdout is not None
        return bool(select.select([self.driver.stdout], [], [], timeout_s)[0])

    def _answer(self) -> list[Any]:
        assert self.driver.stdout is not None
        assert self._has_answered(PATIENCE_S), "the driver does not answer"
        found: list[Any] = json.loads(self.driver.stdout.readline())
        return found

    @contextmanager
    def _losing(self, at: str = "") -> Iterator[None]:
        being_written = self.gate.with_name("gate")
        being_written.write_text(at)
        being_written.rename(self.gate)
        yield
        while not (held := list(self.gate.parent.glob("held-*"))):
            assert not self._has_answered(0.05), f"nobody came to the gate: {self._answer()}"
        (worker,) = held
        executor = self._executor_of(int(worker.name.removeprefix("held-")))
        signal.pidfd_send_signal(executor, signal.SIGKILL)
        assert select.select([executor], [], [], PATIENCE_S)[0], "the executor still lives"
        os.close(executor)
        worker.unlink()

    def _executor_of(self, pid: int) -> int:
        """A handle of the executor above a worker, which has this cluster's driver above it."""
        above = [pid]
        while above[-1] > 1:
            above.append(parent_of(above[-1]))
        assert self.driver.pid in above, above
        (executor,) = (each for each in above[:-1] if EXECUTOR in Path(f"/proc/{each}/cmdline").read_bytes())
        return os.pidfd_open(executor)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    gate = folder / "gate" / "shut"
    gate.parent.mkdir()
    # Javas that live for seconds: what they would gain by compiling well they have no time to use.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    command = [sys.executable, "-m", "tests.support.spark_cluster", str(gate)]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    cluster = SparkCluster(driver, gate)
    try:
        cluster._answer()
        yield cluster
    finally:
        assert driver.stdin is not None
        driver.stdin.close()  # at which it ends
        try:
            driver.wait(PATIENCE_S)
        finally:
            driver.kill()
            assert driver.stdout is not None
            driver.stdout.close()


def answer(found: list[Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main(gate: str) -> None:
    from typer.testing import CliRunner  # noqa: PLC0415 - not for who only asks

    from samovar.changelog.spark.session import starting  # noqa: PLC0415 - as above
    from samovar.service.cli.main import app  # noqa: PLC0415 - as above

    settings = {
        "spark.executorEnv.SAMOVAR_GATE": gate,
        "spark.python.daemon.module": "tests.support.gated_worker",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    with starting("samovar tests on a cluster", MASTER, kafka=True, settings=settings) as start:
        session = start.ready()
        work = Path(os.environ.get("SPARK_HOME") or Path(import_module("pyspark").__file__ or "").parent) / "work"
        answer([])
        try:
            for line in sys.stdin:
                first, *arguments = json.loads(line)
                if first.startswith("call:"):
                    module, _, name = first.removeprefix("call:").partition(":")
                    found = [getattr(import_module(module), name)(session.spark, *arguments)]
                else:
                    done = CliRunner().invoke(app, [first, *arguments])
                    found = [done.exit_code, done.stdout, done.stderr or repr(done.exception)]
                answer(found)
        finally:
            shutil.rmtree(work / session.spark.sparkContext.applicationId, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
