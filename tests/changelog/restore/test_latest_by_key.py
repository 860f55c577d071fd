"""The newest value of each key, as a table file of the kernel's: RocksDB reads what was written, and sees damage."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.restore import latest_by_key
from samovar.changelog.restore.latest_by_key import LatestByKey, NewestTable
from samovar.native.kernel import joined
from samovar.state.errors import StoreDamaged, StoreError
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.state.store import Change, TaskStore
from samovar.state.tables import TableStore

FIRST = (b"\x01", b"first")


def block(part: list[Change]) -> RecordBlock:
    count = len(part)
    null = np.array([value is None for _, value in part])
    numbers = np.arange(count, dtype=np.int64)
    keys, values = joined([key for key, _ in part]), joined([value or b"" for _, value in part])
    return RecordBlock(
        topic="t",
        partition=0,
        offsets=numbers,
        times=numbers,
        next=count,
        keys=keys,
        values=values,
        keyless=np.zeros(count, np.bool_),
        null=null,
    )


def newest_of(*parts: list[Change]) -> LatestByKey:
    """As if each part had been read from a log."""
    made = LatestByKey()
    for part in parts:
        made.add(block(part), len(part))
    made.sort()
    return made


def many(seed: int, count: int, *, deletes: bool = True) -> list[Change]:
    """Keys and values of many lengths, with long common beginnings, empty values, zeros and high bytes."""
    draw = random.Random(seed)
    found: list[Change] = []
    for _ in range(count):
        key = (
            b"k"
            + draw.choice([b"", b"shared/beginning/" * 3, b"\x00\xff"])
            + draw.randbytes(draw.choice([0, 1, 5, 7, 300]))
        )
        is_deleted = deletes and draw.random() < 0.2
        found.append((key, None if is_deleted else draw.randbytes(draw.choice([0, 1, 80, 5_000]))))
    return found


def expected(*parts: list[Change]) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes | None] = {}
    for part in parts:
        rows.update(part)
    return {key: value for key, value in rows.items() if value is not None}


@pytest.mark.parametrize("count", [1, 2, 40, 3_000])
def test_rocksdb_reads_every_row_of_a_table(tmp_path: Path, count: int) -> None:
    parts = many(count, count), many(count + 1, count)
    rows = dict([FIRST]) | expected(*parts)
    store = RocksStore(tmp_path / "store")
    store.ingest_table(NewestTable(FIRST, newest_of(*parts), keep_tombstones=False))
    absent = [key + b"!" for key in rows if key + b"!" not in rows]
    for _ in range(2):  # as it was taken, and merged anew
        assert dict(store.range()) == rows
        assert list(dict(store.range())) == sorted(rows)
        assert store.multi_get(sorted(rows)) == [rows[key] for key in sorted(rows)]
        assert not any(store.multi_get(absent))
        assert {key: store.get(key) for key in rows} == rows
        assert [dict(found) for found in store.prefixes([b"kshared", b"\x01"])] == [
            {key: value for key, value in rows.items() if key.startswith(b"kshared")},
            dict([FIRST]),
        ]
        assert store.rows_about() == len(rows)
        store.compact()
    store.close()
    again = RocksStore(tmp_path / "store")
    assert dict(again.range()) == rows
    again.close()


@pytest.mark.parametrize("kind", ["rocks", "memory", "tables"])
def test_what_is_taken_later_wins_and_deletes(tmp_path: Path, kind: str) -> None:
    (tmp_path / "tables").mkdir()
    store: TaskStore = MemoryStore()
    if kind != "memory":
        store = RocksStore(tmp_path / "s") if kind == "rocks" else TableStore(tmp_path / "tables")
    first, second = many(1, 500, deletes=False), many(2, 500)
    second += [(key, None) for key, _ in first[::3]]
    store.ingest_table(NewestTable(FIRST, newest_of(first), keep_tombstones=False))
    store.ingest_table(NewestTable(FIRST, newest_of(second), keep_tombstones=True))
    if isinstance(store, TableStore):
        files = store.files
        store = RocksStore(tmp_path / "s")
        store.ingest_tables(files)
    assert dict(store.range()) == dict([FIRST]) | expected(first, second)
    store.put(first[0][0], b"newer")
    assert store.get(first[0][0]) == b"newer"
    store.close()


def test_a_flipped_bit_anywhere_is_seen(tmp_path: Path) -> None:
    """Every block has its checksum: rows, filter, index, properties, and the block that tells where these are."""
    table = NewestTable(FIRST, newest_of(many(3, 300)), keep_tombstones=False)
    table.write(tmp_path / "whole.sst")
    whole = (tmp_path / "whole.sst").read_bytes()
    draw = random.Random(4)
    places = [draw.randrange(len(whole) - 53) for _ in range(15)] + [len(whole) - 60, len(whole) - 300]
    for number, place in enumerate(places):
        broken = bytearray(whole)
        broken[place] ^= 1 << draw.randrange(8)
        file = tmp_path / f"{number}.sst"
        file.write_bytes(broken)
        with pytest.raises(StoreDamaged):
            _read_all(tmp_path / f"store-{number}", file)


def _read_all(folder: Path, file: Path) -> None:
    store = RocksStore(folder)
    try:
        store.ingest_tables([file])
        rows = dict(store.range())
        store.multi_get(list(rows))
        store.compact()
    finally:
        store.close()


def test_a_first_row_that_is_not_first_is_refused(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "store")
    with pytest.raises(StoreError):
        store.ingest_table(NewestTable((b"z", b""), newest_of([(b"a", b"1")]), keep_tombstones=False))
    assert list(store.range()) == []
    assert not list(store.path.glob("ingest-*"))
    store.close()


def test_the_first_of_the_newest_rows() -> None:
    assert newest_of([(b"b", b"1"), (b"a", b"2")], [(b"a", None)]).first() == (b"a", None)
    assert newest_of([(b"b", b"1"), (b"a", b"2")]).first() == (b"a", b"2")
    assert LatestByKey().first() is None


def test_what_is_held_is_counted_by_keys_and_values() -> None:
    rows = LatestByKey()
    records = block([(b"aa", b"123"), (b"b", None), (b"ccc", b"1")])
    rows.add(records, 2)
    assert (rows.bytes, len(rows)) == (2 + 3 + 1, 2)
    rows.add(records, 3)
    assert (rows.bytes, len(rows)) == (6 + 10, 3)


@pytest.mark.parametrize("keep", [True, False])
def test_a_table_keeps_tombstones_where_there_may_be_rows_to_delete(keep: bool) -> None:
    table = NewestTable(FIRST, newest_of([(b"b", b"1"), (b"a", None)]), keep_tombstones=keep)
    assert table.changes() == [FIRST, *([(b"a", None)] if keep else []), (b"b", b"1")]


def test_a_table_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    table = NewestTable(FIRST, newest_of([(b"b", b"1")]), keep_tombstones=False)
    with pytest.raises(OSError, match="nowhere"):
        table.write(tmp_path / "nowhere" / "file.sst")
    assert table.write(tmp_path / "file.sst") > 0


def test_a_table_says_how_many_rows_its_file_has(tmp_path: Path) -> None:
    """None is taken where it has none."""
    rows: list[Change] = [(b"k1", b"1"), (b"k2", None), (b"k3", b"3")]
    for keeps, count in ((False, 3), (True, 4)):
        assert NewestTable(FIRST, newest_of(rows), keep_tombstones=keeps).write(tmp_path / f"{keeps}.sst") == count


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOENT, errno.ENOSPC])
def test_whatever_the_system_says_of_a_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rows = newest_of([(b"k", b"v")])
    library = SimpleNamespace(samovar_newest_write=lambda *_: -number)
    table = NewestTable(FIRST, rows, keep_tombstones=False)
    monkeypatch.setattr(latest_by_key, "_library", lambda: library)
    with pytest.raises(OSError, match="pairs") as raised:
        table.write(tmp_path / "pairs")
    assert raised.value.errno == number
    monkeypatch.undo()
