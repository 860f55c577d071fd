"""What the kernel's own table writer gains: a restore with it, next to one by RocksDB's SstFileWriter.

    python -m benchmarks tables [--keys N] [--rounds N]

A broker of its own next to it; a changelog with one record per key; both ways in turn, in one process, the quickest
round of each. Both must give the digest that the service's own stores have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from unittest.mock import patch

from benchmarks.bed import prepared
from benchmarks.matcher import Figure, show
from benchmarks.service import say
from benchmarks.spark import MILLION, processed, timed
from benchmarks.stream import distinct
from samovar.service.recovery.restore.plan import RestoreRequest
from samovar.state.rocks import RocksStore
from samovar.state.store import SortedTable


def take_by_rocksdb(store: RocksStore, table: SortedTable) -> None:
    store.ingest((key, value) for key, value in table.changes() if value is not None)


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("--keys", type=int, default=5 * MILLION)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(given)
    asked = RestoreRequest(source="changelog")
    own: list[float] = []
    rocks: list[float] = []
    with prepared(say) as at:
        side = processed(at, "tables", distinct(arguments.keys))
        for number in range(arguments.rounds):
            own.append(timed(side, asked, None).seconds)
            with patch.object(RocksStore, "ingest_table", take_by_rocksdb):
                rocks.append(timed(side, asked, None).seconds)
            say(f"round {number + 1}: {own[-1]:.1f} s, by RocksDB's writer {rocks[-1]:.1f} s")
    keys = f"{arguments.keys:,} keys"
    figures = [
        Figure("restore, the kernel's table writer", min(own), "s", keys),
        Figure("restore, RocksDB's SstFileWriter from Python", min(rocks), "s", keys),
        Figure("gain", 100 * (1 - min(own) / min(rocks)), "%", "of the restore's time"),
    ]
    show(figures, "samovar, table files of a restore")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
