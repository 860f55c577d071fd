"""How many states rules have on this machine, for the plan of a change. Rows are in the order of their keys: all have
to be looked at, and with millions of them that would take longer than anybody waits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from samovar.changelog.formats.record import ROW, row_parts
from samovar.service.config.models import ServiceFile
from samovar.service.topology.stores import reading, rows_of
from samovar.state.errors import StoreError
from samovar.tasks.runtime.stream_task import task_folder

LOOK_S = 1.0
COUNTED_AT_ONCE = 5_000


@dataclass(frozen=True)
class StateCounts:
    """Keys that have a state, by the store's name. Where it is not whole, there are more."""

    states: Mapping[str, int]
    is_whole: bool


def states_here(
    settings: ServiceFile, stages: Sequence[str], partitions: int, look_s: float = LOOK_S
) -> StateCounts | None:
    """How many keys have a state in the stores of this machine, as far as that can be counted in a moment; None where
    it has no store.
    """
    found: Counter[str] = Counter()
    looked, is_whole = False, True
    deadline = time.monotonic() + look_s
    tasks = [(stage, partition) for stage in stages for partition in range(partitions)]
    for stage, partition in tasks:
        folder = task_folder(settings.state, partition, stage) / "store"
        if not (folder / "CURRENT").exists():
            continue
        if looked and time.monotonic() > deadline:
            return StateCounts(dict(found), False)
        with suppress(StoreError), reading(folder) as store:
            looked = True
            rows = rows_of(store)
            while chunk := list(islice(rows, COUNTED_AT_ONCE)):
                for row, _ in chunk:
                    _, name, kind, number = row_parts(ROW + row)
                    found[name] += kind == 0 and number == 0
                if len(chunk) == COUNTED_AT_ONCE and time.monotonic() > deadline:
                    is_whole = False
                    break
    return StateCounts(dict(found), is_whole) if looked else None
