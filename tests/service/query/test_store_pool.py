"""Stores that are open to read, shared by all who ask."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from samovar.service.query.store_pool import StorePool
from samovar.state.rocks import RocksStore
from samovar.state.secondary import SecondaryStore

USED = "rocksdb.block-cache-usage"


def used_by(store: SecondaryStore) -> int:
    return int(store._open().property_int_value(USED) or 0)


def test_all_of_them_together_have_one_cache(tmp_path: Path) -> None:
    """With one each, an HTTP process would grow with the partitions of its service."""
    for name in ("a", "b"):
        with closing(RocksStore(tmp_path / name)) as store:
            store.write([(b"%08d" % number, b"v" * 100) for number in range(20_000)])
            store.flush()
    with closing(StorePool()) as pool, pool.reading(tmp_path / "a") as a, pool.reading(tmp_path / "b") as b:
        before = used_by(b)
        assert sum(1 for _ in a.range()) == 20_000
        assert used_by(b) == used_by(a) > before + 1_000_000
