"""How tests are shared out to the workers of `make test`, and that these share one broker."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.support import kafka
from tests.support.workers import take_unit, unit_of

FORK = multiprocessing.get_context("fork")
PATIENCE_S = 60


def test_a_file_is_a_unit_but_a_fault_test_is_one_of_its_own() -> None:
    assert unit_of("tests/state/test_rocks.py::test_a[x::y]") == "tests/state/test_rocks.py"
    assert unit_of("tests/faults/test_kills.py::test_b[kafka]") == "tests/faults/test_kills.py::test_b[kafka]"
    assert unit_of("tests/changelog/test_spark_read.py::a") == unit_of("tests/service/views/test_views_spark.py::b")


def test_one_worker_takes_from_the_front_and_the_other_from_the_back() -> None:
    queue = dict.fromkeys("abcd", 1)
    assert [take_unit(queue, worker)[0] for worker in (0, 1, 0, 1)] == ["a", "d", "b", "c"]
    assert queue == {}


@contextmanager
def noted(folder: Path) -> Iterator[str]:
    """Stands in for a broker: what is tested is who starts and who ends it."""
    with (folder / "said").open("a") as said:
        said.write(f"started by {os.getpid()}\n")
        said.flush()
        yield "address"
        said.write(f"ended by {os.getpid()}\n")


def use(folder: Path, has_it: Event, may_go: Event) -> None:
    with kafka.shared(folder) as address:
        assert address == "address"
        has_it.set()
        assert may_go.wait(PATIENCE_S)


class Worker:
    """A process that uses the broker until it may go."""

    def __init__(self, folder: Path) -> None:
        self.has_it, self.may_go = FORK.Event(), FORK.Event()
        self.process = FORK.Process(target=use, args=(folder, self.has_it, self.may_go), daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def goes(self) -> None:
        self.may_go.set()
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0


def test_the_first_that_asks_starts_the_broker_and_ends_it_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "one_of_ours", noted)
    said = tmp_path / "said"
    first = Worker(tmp_path)
    assert first.has_it.wait(PATIENCE_S)
    others = [Worker(tmp_path) for _ in range(3)]
    assert all(each.has_it.wait(PATIENCE_S) for each in others)
    first.may_go.set()
    others[0].goes()
    others[1].process.kill()  # one that dies holds nobody up
    others[1].process.join(PATIENCE_S)
    assert said.read_text() == f"started by {first.pid}\n"
    others[2].goes()
    first.goes()
    assert said.read_text() == f"started by {first.pid}\nended by {first.pid}\n"
    last = Worker(tmp_path)
    assert last.has_it.wait(PATIENCE_S)
    last.goes()
    assert said.read_text().splitlines()[2:] == [f"started by {last.pid}", f"ended by {last.pid}"]
