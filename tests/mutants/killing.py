"""Runs one mutant in a process of its own, until a test or a seed of the simulator notices it.

All modules are loaded once, and each child is a fork: there the functions that differ get the mutant's code. That is
enough, since only the insides of functions are mutated.
"""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, settings

from tests.mutants.mutation import Mutant, path_of

STALLED_S = 20  # of CPU time for one test or one seed: a mutant that takes more hangs
LOOK_S, LOOKS = 10, 4  # in so many looks at a process that computed next to nothing, it waits for ever
MEMORY_BYTES = 8 << 30
QUIETLY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # what was loaded before the fork: only texts differ
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "--no-header", "--tb=no")
IN_MEMORY = Path("/dev/shm")  # nobody cuts the power here, and a sync of a disk takes longer than most tests
DRAWN = {"SAMOVAR_SEED": "14", "SAMOVAR_SEEDS": "14 1", "SAMOVAR_EXAMPLES": "25"}  # the same for every mutant
Step: TypeAlias = tuple[str, ...] | range | list[int]  # names of tests, or seeds of the simulator
WAITS = 124  # the exit code of a process that does
SURVIVED, TIMEOUT, CRASH, TESTS, SIMULATOR = "survived", "timeout", "crash", "tests", "simulator"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed by `how`, where `by` names the test or the seed; or it survived."""

    how: str
    by: str = ""


def load(tests: Sequence[str]) -> None:
    """Import what all children need: the tests and all that they import."""
    os.environ |= DRAWN
    with Path(os.devnull).open("w") as nowhere:
        shown, sys.stdout = sys.stdout, nowhere
        try:
            code = pytest.main([*OPTIONS, *QUIETLY, "--collect-only", *tests])
        finally:
            sys.stdout = shown
    assert code == pytest.ExitCode.OK, f"the tests cannot be collected: pytest ended with {code}"
    importlib.import_module("tests.simulation.histories")


def in_child(act: Callable[[], Any]) -> Any:
    """What a function gives that runs in a fork; the exit code, as a string, where the process ended instead."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    folder = tempfile.mkdtemp(prefix="mutant-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
    child: Any = context.Process(target=_run_in_child, args=(act, sender, folder))
    child.start()
    sender.close()
    try:
        found = receiver.recv()
        if isinstance(found, Exception):
            raise found
        return found
    except EOFError:
        child.join()
        return str(child.exitcode)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # with all that it started: it leads a group of its own
        child.join()
        receiver.close()
        shutil.rmtree(folder, ignore_errors=True)


def run_mutant(mutant: Mutant | None, steps: Sequence[Step]) -> Verdict:
    """Run tests and seeds in a child process until one fails. Without a mutant it is the real code."""

    def act() -> Verdict:
        if mutant is not None:
            install(mutant)
        verdicts = (run_tests(step) if isinstance(step, tuple) else run_seeds(step) for step in steps)
        return next((each for each in verdicts if each is not None), Verdict(SURVIVED))

    found = in_child(act)
    if isinstance(found, Verdict):
        return found
    ended = {str(-signal.SIGXCPU): f"{STALLED_S} s of CPU", str(WAITS): f"waited for {LOOK_S * LOOKS} s"}
    return Verdict(TIMEOUT, ended[found]) if found in ended else Verdict(CRASH, f"exit code {found}")


# ---------------------------------------------------------------- in the child


def _run_in_child(act: Callable[[], Any], sender: Connection, folder: str) -> None:
    os.setpgrp()
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _Idleness().look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    give_time()
    try:
        sender.send(act())
    except Exception as error:  # of what runs the tests: that of a test is a verdict
        sender.send(error)
    sender.close()
    os._exit(0)  # a mutant's threads may never end


def give_time() -> None:
    """Something was done: the next test or seed may take so much time again."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + STALLED_S, hard))


class _Idleness:
    """Ends a process that only waits. The clock alone would not tell, on a machine that others use too."""

    def __init__(self) -> None:
        self.used_s, self.times = 0.0, 0

    def look(self, *_: object) -> None:
        used_s = time.process_time()
        self.times = self.times + 1 if used_s - self.used_s < LOOK_S / 50 else 0
        self.used_s = used_s
        if self.times >= LOOKS:
            os._exit(WAITS)


def install(mutant: Mutant) -> None:
    """Put the mutant's code into the functions of the module that was loaded."""
    module = importlib.import_module(mutant.import_name)
    assert module.__file__ is not None, mutant
    codes = (
        compile(text, module.__file__, "exec", dont_inherit=True)
        for text in (path_of(mutant.module).read_bytes(), mutant.source())
    )
    changed = list(_changed(*codes))
    assert changed, mutant
    for before, after in changed:
        *names, name = before.co_qualname.split(".")
        holder: Any = module
        for each in names:
            holder = vars(holder)[each]
        (function,) = [each for each in _functions(vars(holder)[name]) if each.__code__ == before]
        if before.co_freevars == after.co_freevars:
            function.__code__ = after
        else:  # `super()` is not called any more
            setattr(holder, name, FunctionType(after, function.__globals__, name, function.__defaults__))


def _changed(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Functions of a module, and of its classes, that are not what they were."""
    pairs = zip(*(filter(inspect.iscode, each.co_consts) for each in (before, after)), strict=True)
    for one, other in pairs:
        if one != other and one.co_flags & inspect.CO_OPTIMIZED:
            if not one.co_name.startswith("<"):  # of a class's own fields, which only moved
                yield one, other
        elif one != other:
            yield from _changed(one, other)


def _functions(found: Any) -> Iterator[FunctionType]:
    """The functions behind a name of a module or class."""
    if isinstance(found, property):
        for each in (found.fget, found.fset):
            yield from () if each is None else _functions(each)
    elif isinstance(found, classmethod | staticmethod):
        yield from _functions(found.__func__)
    elif isinstance(found, FunctionType):
        yield found
    if hasattr(found, "__wrapped__") and not isinstance(found, classmethod | staticmethod):
        yield from _functions(found.__wrapped__)


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
        give_time()
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def run_tests(tests: Sequence[str]) -> Verdict | None:
    watcher = _Watcher()
    try:
        code = pytest.main([*OPTIONS, *QUIETLY, *tests], plugins=[watcher])
    except BaseException as error:  # whatever a mutant raises
        return Verdict(TESTS, f"{type(error).__name__}: {error}"[:200])
    return None if code == pytest.ExitCode.OK else Verdict(TESTS, watcher.failed or f"pytest ended with {code}")


def run_seeds(seeds: Sequence[int]) -> Verdict | None:
    from tests.simulation.histories import run_seed  # noqa: PLC0415 - not before the mutant is in place

    for seed in seeds:
        give_time()
        try:
            _, failure = run_seed(seed)
        except BaseException as error:  # whatever a mutant raises
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            return Verdict(SIMULATOR, f"seed {seed}: {failure}".splitlines()[0][:200])
    return None
