"""Table files that come from elsewhere: in order, with deletes, checked; and a store that takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.state.errors import StoreError
from samovar.state.rocks import RocksStore
from samovar.state.tables import TableStore


def taken(tmp_path: Path, made: TableStore) -> dict[bytes, bytes]:
    store = RocksStore(tmp_path / "store")
    try:
        store.ingest_tables(made.files)
        return dict(store.range())
    finally:
        store.close()


@pytest.fixture
def made(tmp_path: Path) -> TableStore:
    (tmp_path / "tables").mkdir()
    return TableStore(tmp_path / "tables")


def test_what_is_later_wins_and_deletes_delete(tmp_path: Path, made: TableStore) -> None:
    made.ingest([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    made.write([(b"c", b"2"), (b"a", None), (b"d", b"2"), (b"d", b"3")])
    made.write([(b"d", None), (b"e", b"3")])
    assert taken(tmp_path, made) == {b"b": b"1", b"c": b"2", b"e": b"3"}
    assert [file.name for file in made.files] == ["000001.sst", "000002.sst", "000003.sst"]
    assert made.rows == 8
    assert all(file.exists() for file in made.files), "they were copied, and stay"


def test_nothing_makes_no_file(tmp_path: Path, made: TableStore) -> None:
    made.ingest([])
    made.write([])
    made.copy([])
    assert made.files == []
    assert taken(tmp_path, made) == {}


def test_many_rows_are_several_files(tmp_path: Path) -> None:
    (tmp_path / "ten").mkdir()
    made = TableStore(tmp_path / "ten", file_rows=10)
    rows = {b"%03d" % number: b"%d" % number for number in range(35)}
    made.copy(rows.items())
    assert len(made.files) == 4
    assert taken(tmp_path, made) == rows


def test_rows_out_of_order_are_refused(made: TableStore) -> None:
    with pytest.raises(StoreError, match="order"):
        made.ingest([(b"b", b"1"), (b"a", b"1")])


def test_it_is_empty_to_whoever_asks(made: TableStore) -> None:
    made.put(b"a", b"1")
    made.delete(b"b")
    assert (made.get(b"a"), made.multi_get([b"a"]), list(made.range()), made.prefixes([b"a"])) == (
        None,
        [None],
        [],
        [[]],
    )
    assert made.rows_about() == 2
