"""Reading a store while its owner writes: a whole view, never a stale or a torn one, and no trace left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from samovar.state.errors import StoreClosed, StoreDamaged, StoreMissing
from samovar.state.rocks import RocksStore
from samovar.state.secondary import SecondaryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "store")
    yield store
    store.close()


def test_a_reader_sees_what_was_written_before_it_came_and_after_it_caught_up(store: RocksStore) -> None:
    store.write([(b"a", b"1"), (b"b", b"1")])
    store.flush()
    store.put(b"b", b"2")
    reader = SecondaryStore(store.path)
    assert list(reader.range()) == [(b"a", b"1"), (b"b", b"2")]
    store.write([(b"a", None), (b"c", b"3")])
    assert reader.multi_get([b"a", b"b", b"c"]) == [b"1", b"2", None]
    begun = reader.range()
    reader.catch_up()
    assert reader.multi_get([b"a", b"b", b"c"]) == [None, b"2", b"3"]
    assert reader.prefixes([b"c", b"a"]) == [[(b"c", b"3")], []]
    assert list(begun) == [(b"a", b"1"), (b"b", b"2")]
    reader.close()
    with pytest.raises(StoreClosed):
        reader.get(b"a")


def test_a_reader_sees_the_newest_value_also_after_a_flush(store: RocksStore) -> None:
    """RocksDB's own catching up would answer 1: its copy of the log hides the table that came later."""
    store.put(b"a", b"1")
    reader = SecondaryStore(store.path)
    assert reader.get(b"a") == b"1"
    store.put(b"a", b"2")
    store.compact()
    reader.catch_up()
    assert reader.get(b"a") == b"2"
    reader.close()


def test_following_reads_only_what_is_new_and_a_flush_means_opening_anew(store: RocksStore) -> None:
    random = Random(5)
    reader = SecondaryStore(store.path)
    followed = 0
    for step in range(200):
        store.write([(b"%02d" % random.randrange(40), random.choice([None, b"%d" % step])) for _ in range(5)])
        flushes = step % 23 == 22
        if flushes:
            random.choice([store.flush, store.compact])()
        is_followed = reader.follow()
        assert is_followed != flushes
        followed += is_followed
        reader.catch_up()
        assert list(reader.range()) == list(store.range()), step
    assert followed > 150
    reader.close()


def test_a_view_outlives_the_files_that_it_is_made_of(store: RocksStore) -> None:
    rows = [(b"%05d" % place, b"old") for place in range(5000)]
    store.write(rows)
    store.compact()
    reader = SecondaryStore(store.path)
    begun = reader.range()
    next(begun)
    store.write([(key, b"new") for key, _ in rows])
    store.compact()
    assert list(begun) == rows[1:]
    assert reader.get(b"00001") == b"old"
    reader.close()


WRITER = """
import sys
from pathlib import Path
from samovar.state.rocks import RocksMemory, RocksStore
store = RocksStore(Path(sys.argv[1]), memory=RocksMemory(8 << 20, 1 << 20))
place = 0
while True:
    store.write([(b"%03d" % row, b"%d" % place) for row in range(200)] + [(b"position", b"%d" % place)])
    if place % 100 == 0:
        store.flush()
        print(place, flush=True)
    place += 1
"""


def test_a_reader_beside_a_busy_writer_sees_whole_batches(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            reader = SecondaryStore(tmp_path / "store")
            for _ in range(15):
                told = int(writer.stdout.readline())
                reader.catch_up()
                views = {value for _, value in reader.range()}
                assert len(views) == 1, views
                assert int(views.pop()) >= told
            reader.close()
        finally:
            writer.kill()


def stamps(path: Path) -> dict[str, int]:
    """When each file was written. rocksdict writes its own settings at every opening: the same, and not RocksDB's."""
    return {file.name: file.stat().st_mtime_ns for file in path.iterdir() if file.name != "rocksdict-config.json"}


def test_a_reader_takes_no_lock_and_leaves_nothing(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    store.put(b"a", b"1")
    store.close()
    before = stamps(store.path)
    reader = SecondaryStore(store.path)
    reader.catch_up()
    assert reader.get(b"a") == b"1"
    assert stamps(store.path) == before
    RocksStore(store.path).close()
    reader.close()
    assert list(own.iterdir()) == []


def test_no_store_is_made_where_none_is(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(StoreMissing):
            SecondaryStore(path)
    assert list(tmp_path.iterdir()) == []


def test_damage_is_told(store: RocksStore) -> None:
    store.put(b"a", b"1")
    store.close()
    (store.path / "CURRENT").unlink()
    with pytest.raises(StoreDamaged):
        SecondaryStore(store.path)
