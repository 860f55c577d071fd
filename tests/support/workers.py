"""How `make test` shares the tests out to its workers (pytest-xdist).

One unit of work is a file, so that what a module's fixtures made is made once. A fault test is a unit of its own: it
has nothing in common with its neighbours, and takes long. Files that share something that is slow to start are one
unit, by a word in their names.

Units stand in the order of their names: faults, which mostly wait for brokers and processes, near the front; property
tests, which mostly compute, at the back. One worker takes from the front, the other from the back, so that most of the
time one of them waits while the other computes; they meet in the middle, where the units are small.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # ships no types

APART = "tests/faults/"
TOGETHER = ("spark", "browser")  # one Spark, one browser for all tests that need it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Ours, unless another was asked for by --dist."""
    return Sharing(config, log) if config.getvalue("dist") == "load" else None


def unit_of(nodeid: str) -> str:
    """The unit of a test.

    >>> unit_of("tests/state/test_rocks.py::test_a[x::y]")
    'tests/state/test_rocks.py'
    >>> unit_of("tests/faults/test_kills.py::test_b[kafka]")
    'tests/faults/test_kills.py::test_b[kafka]'
    >>> unit_of("tests/changelog/test_spark_read.py::test_c"), unit_of("tests/service/spark/test_frames.py::test_d")
    ('spark', 'spark')
    """
    file = nodeid.partition("::")[0]
    shared = next((word for word in TOGETHER if word in file), None)
    return shared or (nodeid if file.startswith(APART) else file)


def take_unit(queue: MutableMapping[str, Any], worker: int) -> tuple[str, Any]:
    """The first one, or, for every second worker, the last one."""
    name = next(reversed(list(queue)) if worker % 2 else iter(queue))
    return name, queue.pop(name)


class Sharing(LoadScopeScheduling):  # type: ignore[misc] # of no type, as far as is known
    """The source of truth for which tests are still to be given to a worker."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the order is meant

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        name, unit = take_unit(self.workqueue, self.nodes.index(node))
        self.assigned_work[node][name] = unit
        known = self.registered_collections[node]
        node.send_runtest_some([known.index(nodeid) for nodeid, is_done in unit.items() if not is_done])
