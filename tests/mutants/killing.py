"""Runs one mutant in a process of its own, until a test or a seed of the simulator notices it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, settings

from tests.mutants.mutation import ROOT, Mutant

# Loaded once, before the fork. Nothing of samovar: it would hold the modules that a child mutates.
HEAVY: tuple[str, ...] = (
    "confluent_kafka.admin",
    "docker",
    "lark",
    "numpy",
    "prometheus_client",
    "pyarrow.parquet",
    "pydantic",
)
HEAVY += ("rocksdict", "testcontainers.core.container", "typer", "xdist.scheduler", "yaml")
STALLED_S = 40  # of CPU time for one test or one seed: a mutant that takes more hangs
MOST_S = 900  # of the clock, for one that hangs and computes nothing
MEMORY_BYTES = 8 << 30
QUIETLY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # what was loaded before the fork: only texts differ
IN_MEMORY = Path("/dev/shm")  # nobody cuts the power here, and a sync of a disk takes longer than most tests
SEED_OF_TESTS, SEEDS_OF_TESTS = "14", "14 1"  # of those that draw; of those that take several
Step: TypeAlias = tuple[str, ...] | range  # files of tests, or seeds of the simulator
SURVIVED, TIMEOUT, CRASH, TESTS, SIMULATOR = "survived", "timeout", "crash", "tests", "simulator"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed by `how`, where `by` names the test or the seed; or it survived."""

    how: str
    by: str = ""


class MutantFinder(MetaPathFinder):
    """Gives the mutated module where the real one is asked for."""

    def __init__(self, name: str, source: bytes) -> None:
        self._name, self._source = name, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        file = str(ROOT / "samovar" / Path(*fullname.split(".")[1:])) + ".py"
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, self._source))


class _Loader(SourceFileLoader):
    """Compiles a text of its own, and leaves the cached code of the real module alone."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code = compile(self._source, self.path, "exec", dont_inherit=True)
        assert isinstance(code, CodeType)
        return code


def load_heavy() -> None:
    """What all children need and none mutates. A name that is missing here only costs time."""
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)


def run_mutant(mutant: Mutant | None, steps: Sequence[Step]) -> Verdict:
    """Run tests and seeds in a child process until one fails. Without a mutant it is the real code."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    folder = tempfile.mkdtemp(prefix="mutant-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
    child = context.Process(target=_run_in_child, args=(mutant, steps, sender, folder))
    child.start()
    sender.close()
    try:
        return _verdict(child, receiver)
    finally:
        _end(child)
        receiver.close()
        shutil.rmtree(folder, ignore_errors=True)


def _verdict(child: Any, receiver: Connection) -> Verdict:
    if not receiver.poll(MOST_S):
        return Verdict(TIMEOUT, f"nothing for {MOST_S} s")
    try:
        how, by = receiver.recv()
    except EOFError:
        child.join()
        is_timeout = child.exitcode == -signal.SIGXCPU
        return (
            Verdict(TIMEOUT, f"{STALLED_S} s of CPU") if is_timeout else Verdict(CRASH, f"exit code {child.exitcode}")
        )
    return Verdict(how, by)


def _end(child: Any) -> None:
    """With all that it started: it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join()


# ---------------------------------------------------------------- in the child


def _run_in_child(mutant: Mutant | None, steps: Sequence[Step], sender: Connection, folder: str) -> None:
    os.setpgrp()
    _separate(folder)
    if mutant is not None:
        sys.meta_path.insert(0, MutantFinder(mutant.import_name, mutant.source()))
    verdicts = (_run_seeds(step) if isinstance(step, range) else _run_tests(step) for step in steps)
    verdict = next((each for each in verdicts if each is not None), Verdict(SURVIVED))
    if mutant is not None and verdict.how == SURVIVED and mutant.import_name not in sys.modules:
        verdict = Verdict(SURVIVED, "no test imports the module")
    sender.send((verdict.how, verdict.by))
    sender.close()
    os._exit(0)  # a mutant's threads may never end


def _separate(folder: str) -> None:
    """Files, output and limits of its own; the same examples for every mutant."""
    os.environ |= {
        "TMPDIR": folder,
        "SAMOVAR_SEED": SEED_OF_TESTS,
        "SAMOVAR_SEEDS": SEEDS_OF_TESTS,
        "SAMOVAR_EXAMPLES": "25",
    }
    tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _give_time()


def _give_time() -> None:
    """Something was done: the next test or seed may take so much CPU time again."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + STALLED_S, hard))


class _Watcher:
    """Plugin of pytest: which test failed, and that time goes on with each."""

    def __init__(self) -> None:
        self.failed: str | None = None

    def pytest_configure(self) -> None:
        """One failing example is enough: to look for a smaller one takes long."""
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", settings.get_profile("samovar"), phases=phases, database=None)
        settings.load_profile("mutants")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look(report)

    def _look(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        _give_time()
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def _run_tests(tests: Sequence[str]) -> Verdict | None:
    if not tests:
        return None
    watcher = _Watcher()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", *QUIETLY]
    try:
        code = pytest.main([*options, *tests], plugins=[watcher])
    except BaseException as error:  # whatever a mutant raises
        return Verdict(TESTS, f"{type(error).__name__}: {error}"[:200])
    return None if code == pytest.ExitCode.OK else Verdict(TESTS, watcher.failed or f"pytest ended with {code}")


def _run_seeds(seeds: range) -> Verdict | None:
    for seed in seeds:
        _give_time()
        try:
            from tests.simulation.histories import run_seed  # noqa: PLC0415 - not before the mutant is in place

            _, failure = run_seed(seed)
        except BaseException as error:  # whatever a mutant raises
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            return Verdict(SIMULATOR, f"seed {seed}: {failure}".splitlines()[0][:200])
    return None
