"""The store on disk: durable through a kill -9, one owner at a time, and damage that is told, never answered."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.state.digest import digest
from samovar.state.errors import StoreClosed, StoreDamaged, StoreError, StoreFull, StoreLocked
from samovar.state.memory import MemoryStore
from samovar.state.reading import MB
from samovar.state.rocks import RocksMemory, RocksStore
from tests.contracts.store import empty, keys

SMALL = RocksMemory(cache_bytes=8 * MB, write_buffer_bytes=2 * MB)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "store")
    yield store
    store.close()


def row(place: int) -> tuple[bytes, bytes]:
    """A row that does not compress, so that a flipped bit is in a row, not in a code."""
    return b"key-%06d" % place, hashlib.shake_128(b"%d" % place).digest(100)


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# ---------------------------------------------------------------- durable

OWNER = """
import sys
from pathlib import Path
from samovar.state.rocks import RocksStore
store = RocksStore(Path(sys.argv[1]))
for place in range(int(sys.argv[2])):
    store.write([(b"%d.%d" % (place, row), b"v") for row in range(10)] + [(b"position", b"%d" % place)])
print("written", flush=True)
sys.stdin.read()
"""


def test_p3_a_kill_loses_nothing_and_leaves_no_lock(tmp_path: Path) -> None:
    owner = python(OWNER, tmp_path / "store", 500)
    assert line(owner) == "written"
    owner.kill()
    owner.communicate()
    store = RocksStore(tmp_path / "store")
    assert store.get(b"position") == b"499"
    assert len(list(store.range())) == 5001
    store.close()


WRITER = """
import sys
from pathlib import Path
from samovar.state.rocks import RocksStore
store = RocksStore(Path(sys.argv[1]))
place = int(store.get(b"position") or -1)
while True:
    place += 1
    store.write([(b"%d" % row, b"%d" % place) for row in range(50)] + [(b"position", b"%d" % place)])
    if place % 20 == 0:
        print(place, flush=True)
"""


def test_p4_a_kill_in_the_middle_of_writing_leaves_whole_batches(tmp_path: Path) -> None:
    for _ in range(4):
        writer = python(WRITER, tmp_path / "store")
        told = max(int(line(writer)) for _ in range(5))
        writer.kill()
        writer.communicate()
        store = RocksStore(tmp_path / "store")
        position = store.get(b"position")
        assert position is not None
        assert int(position) >= told
        assert {value for key, value in store.range()} == {position}
        store.close()


def test_a_store_is_as_it_was_after_close_and_open(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "store"
    wanted = [row(place) for place in range(1000)]
    for part in range(4):
        store = RocksStore(path)
        store.write(wanted[part::4])
        store.close()
    store = RocksStore(path)
    assert list(store.range()) == wanted
    store.close()


# ---------------------------------------------------------------- one owner

TAKER = """
import sys
from pathlib import Path
from samovar.state.errors import StoreLocked
from samovar.state.rocks import RocksStore
try:
    RocksStore(Path(sys.argv[1])).close()
    print("taken")
except StoreLocked as held:
    print(held.code)
"""


def test_p6_a_held_store_is_refused_to_others_until_it_is_closed(store: RocksStore) -> None:
    assert python(TAKER, store.path).communicate()[0].strip() == "store-held"
    with pytest.raises(StoreLocked) as held:
        RocksStore(store.path)
    assert str(store.path) in str(held.value)
    store.close()
    assert python(TAKER, store.path).communicate()[0].strip() == "taken"


def test_p5_close_frees_the_lock_also_while_a_range_is_read(store: RocksStore) -> None:
    store.write([row(place) for place in range(5000)])
    begun, not_begun = store.range(), store.range()
    next(begun)
    store.close()
    again = RocksStore(store.path)
    assert again.get(row(1)[0]) == row(1)[1]
    again.close()
    for pairs in (begun, not_begun):
        with pytest.raises(StoreClosed):
            list(pairs)


def test_a_closed_store_says_so(store: RocksStore) -> None:
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.get(b"a"),
        lambda: store.multi_get([b"a"]),
        store.range,
        lambda: store.prefixes([b"a"]),
        lambda: store.put(b"a", b"b"),
        lambda: store.delete(b"a"),
        lambda: store.write([]),
        lambda: store.ingest([]),
        lambda: store.snapshot(store.path / "snapshot"),
    ]
    for use in uses:
        with pytest.raises(StoreClosed):
            use()


# ---------------------------------------------------------------- damage

ROWS = 2000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store whose rows are all in one table file."""
    path = tmp_path_factory.mktemp("whole") / "store"
    store = RocksStore(path)
    store.write([row(place) for place in range(ROWS)])
    store.compact()
    store.close()
    assert len(list(path.glob("*.sst"))) == 1
    return path


def flipped(whole: Path, path: Path, at: int) -> Path:
    """A copy of a store with one bit of its table file flipped."""
    shutil.copytree(whole, path)
    table = next(path.glob("*.sst"))
    content = bytearray(table.read_bytes())
    content[at] ^= 1
    table.write_bytes(content)
    return path


def answers(store: RocksStore) -> list[Callable[[], list[tuple[bytes, bytes | None]]]]:
    """All rows, by every way of reading."""
    wanted = [row(place)[0] for place in range(ROWS)]
    return [
        lambda: [(key, store.get(key)) for key in wanted],
        lambda: list(zip(wanted, store.multi_get(wanted), strict=True)),
        lambda: list(store.range()),
        lambda: [(key, value) for pairs in store.prefixes(wanted) for key, value in pairs],
    ]


def test_a_flipped_bit_in_a_row_is_damage_by_every_way_of_reading(whole: Path, tmp_path: Path) -> None:
    at = next(whole.glob("*.sst")).read_bytes().index(row(1234)[1])
    store = RocksStore(flipped(whole, tmp_path / "store", at), memory=SMALL)
    for read in answers(store):
        with pytest.raises(StoreDamaged, match="samovar restore"):
            read()
    with pytest.raises(StoreDamaged):
        list(store.range(row(1234)[0], row(1235)[0]))
    assert list(store.range(b"", row(500)[0])) == [row(place) for place in range(500)]
    store.close()


def test_a_flipped_bit_anywhere_is_damage_or_does_no_harm(whole: Path, tmp_path: Path) -> None:
    size = next(whole.glob("*.sst")).stat().st_size
    truth = [row(place) for place in range(ROWS)]
    found = 0
    # The end of the file (index, filter, properties, footer) more closely than its blocks of rows.
    for at in [*range(0, size, size // 10), *range(size - 3000, size, 131)]:
        try:
            store = RocksStore(flipped(whole, tmp_path / str(at), at), memory=SMALL)
        except StoreDamaged:
            found += 1
            continue
        for read in answers(store):
            try:
                assert read() == truth, at
            except StoreDamaged:
                found += 1
        store.close()
    assert found > 40


def test_a_flipped_bit_anywhere_in_the_manifest_is_damage(tmp_path: Path) -> None:
    """Two tables, and rows in the log behind them, which must not outlive the tables."""
    store = RocksStore(tmp_path / "live", memory=SMALL)
    for part in range(2):
        store.write([row(part * 10 + place) for place in range(10)])
        store.flush()
    store.put(b"position", b"20")
    shutil.copytree(store.path, tmp_path / "killed")
    store.close()
    manifest = next((tmp_path / "killed").glob("MANIFEST-*"))
    content = manifest.read_bytes()
    for at in range(len(content)):
        manifest.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(StoreDamaged):
            RocksStore(tmp_path / "killed", memory=SMALL).close()
        manifest.write_bytes(content)
    whole = RocksStore(tmp_path / "killed", memory=SMALL)
    assert list(whole.range()) == [*map(row, range(20)), (b"position", b"20")]
    whole.close()


def test_a_manifest_of_several_blocks_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = RocksStore(path, memory=SMALL)
    for part in range(80):
        store.put(b"k" * 1000 + b"%d" % part, b"v")
        store.flush()
    shutil.copytree(path, tmp_path / "killed")
    store.close()
    assert max(file.stat().st_size for file in (tmp_path / "killed").glob("MANIFEST-*")) > 3 * 32_768
    again = RocksStore(tmp_path / "killed")
    assert len(list(again.range())) == 80
    again.close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_missing_file_is_damage_and_no_new_store_is_begun(whole: Path, tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    for file in path.glob(pattern):
        file.unlink()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="samovar restore"):
            RocksStore(path).close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_truncated_file_is_damage(whole: Path, tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    file = next(path.glob(pattern))
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreDamaged):
        RocksStore(path).close()


def test_a_crash_before_the_first_row_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir()
    (path / "MANIFEST-000001").write_bytes(b"what RocksDB writes before it writes CURRENT")
    store = RocksStore(path)
    store.put(b"a", b"1")
    assert store.get(b"a") == b"1"
    store.close()


# ---------------------------------------------------------------- a full disk

FILLER = """
import os, resource, sys
from pathlib import Path
from samovar.state.errors import StoreFull
from samovar.state.rocks import RocksMemory, RocksStore
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = RocksStore(Path(sys.argv[1]), memory=RocksMemory(8 << 20, 4 << 20))
place = 0
try:
    while place < 1000:
        rows = [(b"%d.%d" % (place, row), os.urandom(1000)) for row in range(100)]
        store.write([*rows, (b"position", b"%d" % place)])
        place += 1
    print("never full")
except StoreFull:
    assert store.get(b"position") == b"%d" % (place - 1)
    store.close()
    print(place - 1)
"""


def fill(path: Path, limit_bytes: int) -> int:
    """Write until nothing goes any more; the last position that was written."""
    told, _ = python(FILLER, path, limit_bytes).communicate(timeout=120)
    return int(told)


def check_after_full(path: Path, position: int) -> None:
    store = RocksStore(path)
    assert store.get(b"position") == b"%d" % position
    assert len(list(store.range())) == (position + 1) * 100 + 1
    store.close()


def test_a_file_that_may_not_grow_is_a_full_store(tmp_path: Path) -> None:
    check_after_full(tmp_path / "store", fill(tmp_path / "store", 4 * MB))


def test_a_full_disk_is_a_full_store_and_what_was_written_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root; the limit on file sizes is tested above")
    try:
        position = fill(disk / "store", 0)
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        check_after_full(disk / "store", position)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_by_its_name(tmp_path: Path) -> None:
    error = StoreFull("no space left (write)", tmp_path, "Free some space.")
    assert str(error) == f"store-full: no space left (write): {tmp_path}\n  Free some space."


# ---------------------------------------------------------------- many at once


def test_ingested_pairs_win_over_what_was_there(store: RocksStore) -> None:
    store.write([(b"a", b"old"), (b"b", b"old"), (b"z", b"old")])
    store.ingest([(b"", b"1"), (b"b", b"2"), (b"c", b"3")])
    store.put(b"c", b"newer")
    assert list(store.range()) == [(b"", b"1"), (b"a", b"old"), (b"b", b"2"), (b"c", b"newer"), (b"z", b"old")]
    store.ingest([])
    store.close()
    assert not list(store.path.glob("ingest-*"))
    again = RocksStore(store.path)
    assert again.multi_get([b"", b"b", b"c"]) == [b"1", b"2", b"newer"]
    again.close()


@pytest.mark.parametrize("pairs", [[(b"b", b"1"), (b"a", b"1")], [(b"a", b"1"), (b"a", b"2")]])
def test_ingest_refuses_what_is_not_sorted_and_takes_nothing_of_it(
    store: RocksStore, pairs: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(StoreError, match="pair 1 to ingest"):
        store.ingest(pairs)
    assert list(store.range()) == []


def test_ingest_passes_on_what_its_source_raises(store: RocksStore) -> None:
    def broken() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise ConnectionError("the log is away")

    with pytest.raises(ConnectionError):
        store.ingest(broken())
    assert list(store.range()) == []


def test_prefixes_of_rocks_and_of_its_twin_are_what_ranges_are(store: RocksStore) -> None:
    @given(st.lists(keys), st.lists(keys))
    def run(there: list[bytes], asked: list[bytes]) -> None:
        twin = MemoryStore()
        empty(store)
        for each in (store, twin):
            each.write([(key, b"v" + key) for key in there])
        wanted = [[pair for pair in store.range() if pair[0].startswith(prefix)] for prefix in asked]
        assert store.prefixes(asked) == wanted
        assert twin.prefixes(asked) == wanted

    run()


def test_stores_of_a_process_share_their_memory(tmp_path: Path) -> None:
    memory = RocksMemory(cache_bytes=8 * MB, write_buffer_bytes=2 * MB)
    stores = [RocksStore(tmp_path / str(number), memory=memory) for number in range(4)]
    for number, store in enumerate(stores):
        for batch in range(20):
            store.write([row(batch * 1000 + place) for place in range(1000)])
            assert memory.buffers.get_usage() < 6 * MB
        assert store.get(row(number)[0]) == row(number)[1]
    digests = {digest(store.range()) for store in stores}
    assert len(digests) == 1
    assert memory.cache.get_usage() < 12 * MB
    for store in stores:
        store.close()
