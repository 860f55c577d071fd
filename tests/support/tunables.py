"""Tiny random values for all tunables: none of them may change a result, so every test may draw them.

SAMOVAR_SEED repeats what was drawn; a test that fails shows the line.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, fields, replace
from random import Random
from typing import Any

from samovar.common.tunables import DEFAULTS, Tunables

SEED = int(os.environ.get("SAMOVAR_SEED", "0").split()[0]) or time.time_ns() % 1_000_000

RANGES = {
    "poll_records": (1, 40),
    "commit_polls": (1, 3),
    "pending_events": (1, 50),
    "pending_bytes": (1, 10_000),
    "step_bytes": (1, 20_000),
    "piece_records": (1, 10),
    "mark_records": (1, 5),
    "recover_records": (1, 10),
    "snapshot_every_ms": (1, 1_000),
    "cache_bytes": (1, 5_000),
    "memory_commits": (1, 3),
    "memory_rows": (1, 10),
    "whole_states": (1, 8),
    "index_rows": (1, 4),
    "rebuilt_rows": (1, 3),
    "digest_rows": (1, 5),
    "chunk_events": (1, 5),
    "header_events": (1, 6),
    "header_bytes": (16, 200),
    "slice_rows": (1, 10),
    "cold_rows": (1, 10),
    "memo_results": (1, 5),
    "restore_records": (1, 20),
    "restore_rows": (1, 10),
    "restore_bytes": (1, 2_000),
    "table_rows": (1, 10),
    "file_rows": (1, 10),
    "replay_records": (1, 20),
    "replay_events": (1, 20),
    "replay_bytes": (1, 5_000),
    "replay_rows": (1, 20),
    "burst_records": (1, 10),
    "append_rows": (1, 10),
    "look_back_records": (1, 5),
    "few_records": (1, 20),
    "spark_connector": (0, 1),
    "feed_bytes": (1, 2_000),
    "archive_records": (1, 30),
    "archive_bytes": (1, 4_000),
    "archive_group_records": (1, 10),
    "archive_group_bytes": (1, 1_000),
    "segment_bytes": (1, 500),
    "fetch_bytes": (1, 2_000),
    "join_bytes": (1, 2_000),
    "join_segments": (1, 8),
    "joined_segments": (1, 20),
    "compact_bytes": (1, 1_000),
    "compact_keys": (1, 10),
    "dirty_bytes": (1, 1_000),
    "retain_segments": (1, 5),
}
assert set(RANGES) == {each.name for each in fields(Tunables)}, (
    "a tunable without a tiny range is one that no test draws"
)
ELSEWHERE = ("cache_bytes", "snapshot_every_ms")  # in the service file
# Beyond these an input waits for the clock, which tests mostly stop: so does one after a step that is taken again.
PAUSING = ("pending_events", "pending_bytes", "step_bytes")


def tiny(random_: Random) -> Tunables:
    """All of them tiny, but for some that stay as they are: what is large may hide what is small."""
    is_usual = random_.random() < 0.5
    drawn = {
        name: type(getattr(DEFAULTS, name))(random_.randint(*span))  # of 0 and 1, a bool
        for name, span in RANGES.items()
        if not is_usual or random_.random() < 0.7
    }
    return replace(DEFAULTS, **drawn)


def tiny_section(random_: Random, *, clock_goes_on: bool = False) -> dict[str, Any]:
    """The same as the service file has it, `cache` too; what needs a clock that goes on only where it does."""
    drawn = asdict(tiny(random_))
    left_out = ELSEWHERE if clock_goes_on else (*ELSEWHERE, *PAUSING)
    wanted = {name: value for name, value in drawn.items() if name not in left_out}
    section = {name: f"{value}B" if name.endswith("_bytes") else value for name, value in wanted.items()}
    return {"tunables": section, "cache": f"{drawn['cache_bytes']}B"}


def random_of_test() -> Random:
    """What a test draws from: the same for the same seed and test. The line that repeats it is shown by a failure."""
    print(f"SAMOVAR_SEED={SEED}")  # noqa: T201 - as said
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return Random(f"{SEED} {test}")


# For a test that counts what large input takes: with tiny values a million events would take an hour.
USUAL: dict[str, Any] = {"tunables": {}, "cache": f"{DEFAULTS.cache_bytes}B"}
