"""How RocksDB is set up and read, by the store that writes and the one that only reads. Damage is an error, no gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBufferManager,
)

from samovar.state.errors import StoreClosed, damaged, explained

MB = 1 << 20
Pair: TypeAlias = tuple[bytes, bytes]

# Sorting makes neighbours share blocks, which pays from about here on.
_SORTED_FROM = 64
_CHUNKS = (16, 128, 1024)  # pairs a step of a range: few for the short ones, many for the long
_BLOCK, _HEADER = 32_768, 7  # of a MANIFEST
# Of a whole record, and of its first, middle and last piece: whether it is inside a record before and after it.
_MOVES = {1: (False, False), 2: (False, True), 3: (True, True), 4: (True, False)}


@dataclass(frozen=True, eq=False)
class RocksMemory:
    """What all stores of a container may use together: make one, and give it to each of them.

    `cache_bytes` is the whole: blocks, indexes, filters, and the write buffers, which take at most
    `write_buffer_bytes` of it before they are written to disk.
    """

    cache_bytes: int = 96 * MB
    write_buffer_bytes: int = 32 * MB

    @cached_property
    def cache(self) -> Cache:
        return Cache(self.cache_bytes)

    @cached_property
    def buffers(self) -> WriteBufferManager:
        # No stall: with one thread that writes there is nobody else who could free a buffer.
        return WriteBufferManager.new_write_buffer_manager_with_cache(self.write_buffer_bytes, False, self.cache)


def options(memory: RocksMemory) -> Options:
    """Options of a store and of the files ingested into it: for millions of small rows, in bounded memory."""
    blocks = BlockBasedOptions()  # Bloom filters over whole keys and a hash index in each: most reads ask for one key
    blocks.set_block_cache(memory.cache)
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(4096)
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    blocks.set_data_block_hash_ratio(0.75)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_write_buffer_manager(memory.buffers)
    made.set_write_buffer_size(max(memory.write_buffer_bytes // 2, MB))
    made.set_max_write_buffer_number(3)
    made.set_allow_concurrent_memtable_write(False)  # there is one writer
    made.set_level_compaction_dynamic_level_bytes(True)
    made.set_compression_type(DBCompressionType.lz4())
    made.set_max_background_jobs(2)
    made.set_block_based_table_factory(blocks)
    made.set_keep_log_file_num(2)  # little of RocksDB's own log, and no statistics: a state folder holds state
    made.set_max_log_file_size(MB)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    return made


def check_manifest(path: Path) -> None:
    """StoreDamaged where the manifest that CURRENT names does not end with a whole record. RocksDB takes a broken end
    for a crash while it was written, and then opens the store without its newest tables and with its newest log: rows
    would be missing in the middle.

    MANIFEST is blocks of 32,768 bytes, each a run of pieces; fewer than 7 bytes at a block's end are padding:

        checksum (4 bytes)   length (2 bytes, little endian)   kind (1 byte)   content

    RocksDB compares the checksums itself. What it does not tell is a piece that reaches beyond the file's end, because
    its length is damaged or the file cut off. A record that a crash left half written is refused too: RocksDB writes
    one in a single call, so that this is rare. A file that is cut off exactly between two records cannot be told from a
    whole one.
    """
    name = (path / "CURRENT").read_bytes().decode("utf-8", "replace").strip()
    try:
        content = (path / name).read_bytes()
    except (OSError, ValueError) as error:
        raise damaged(path, f"CURRENT names {name!r}, which cannot be read: {error}") from error
    if not content:
        raise damaged(path, f"{name} is empty")
    at, inside = 0, False
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6] if at + 6 < len(content) else 0
        if _HEADER + length > left or at + _HEADER + length > len(content) or _MOVES.get(kind, (None,))[0] != inside:
            raise damaged(path, f"{name} is broken at byte {at} of {len(content)}")
        inside = _MOVES[kind][1]
        at += _HEADER + length
    if inside:
        raise damaged(path, f"{name} ends in the middle of a record")


class StoreCursor:
    """One iteration over a range. The store drops its handles at close: a live one would keep RocksDB's lock.

    `items` is quick, but ends at a damaged block as if it were the end of the range. So a second iterator, made at the
    same moment and thus with the same view, is asked at the end whether there really is nothing more.
    """

    def __init__(self, db: Rdict, where: Path, start: bytes, end: bytes | None) -> None:
        self._where = where
        self._last: bytes | None = None
        self._start = start
        # Kept as long as the iterators are: they point to the end's bytes, which only the options hold on to.
        self._bounds = _bounds(end)
        self._items: Iterator[Any] | None = db.items(from_key=start, read_opt=self._bounds)
        self._probe: RdictIter | None = db.iter(self._bounds)

    def release(self) -> None:
        self._items = self._probe = None

    def pairs(self) -> Iterator[Pair]:
        """All pairs, in chunks: a Python call a pair would cost more than reading it."""
        sizes = iter(_CHUNKS)
        size = next(sizes)
        while True:
            if self._items is None or self._probe is None:
                raise StoreClosed("the store was closed while a range was read", self._where, "Open it again.")
            chunk = cast(list[Pair], list(islice(self._items, size)))
            if chunk:
                self._last = chunk[-1][0]
            if len(chunk) < size:
                self._check_end(self._probe)
            if not chunk:
                break
            yield from chunk
            size = next(sizes, size)
        self.release()

    def _check_end(self, probe: RdictIter) -> None:
        try:
            probe.seek(self._start if self._last is None else self._last)
            if self._last is not None and probe.valid():
                probe.next()
            probe.status()
        except Exception as error:
            raise explained(error, self._where, "range") from error
        if probe.valid():
            raise damaged(self._where, f"a range ended after {self._last!r}, before {probe.key()!r}")


def _bounds(end: bytes | None) -> ReadOptions:
    made = ReadOptions()
    made.set_verify_checksums(True)
    if end is not None:
        made.set_iterate_upper_bound(end)
    return made


class RocksReader:
    """What a store that writes and one that only reads have in common: a handle, and the ranges read from it."""

    def __init__(self, path: Path, db: Rdict) -> None:
        self.path = path
        self._db: Rdict | None = db
        self._cursors: WeakSet[StoreCursor] = WeakSet()

    def _open(self) -> Rdict:
        if self._db is None:
            raise StoreClosed("a closed store was used", self.path, "Open it again.")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        db = self._open()
        try:
            return cast(bytes | None, db.get(key))
        except Exception as error:
            raise explained(error, self.path, "get") from error

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(keys) < _SORTED_FROM:
            return self._multi_get(list(keys))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        values: list[bytes | None] = [None] * len(keys)
        for place, value in zip(order, self._multi_get([keys[place] for place in order]), strict=True):
            values[place] = value
        return values

    def _multi_get(self, keys: list[Any]) -> list[bytes | None]:
        db = self._open()
        try:
            return cast(list[bytes | None], db.get(keys)) if keys else []
        except Exception as error:
            raise explained(error, self.path, "multi_get") from error

    def range(self, start: bytes = b"", end: bytes | None = None) -> Iterator[Pair]:
        if end is not None and start >= end:
            return iter(())
        cursor = StoreCursor(self._open(), self.path, start, end)
        self._cursors.add(cursor)
        return cursor.pairs()

    def prefixes(self, prefixes: Sequence[bytes]) -> list[list[Pair]]:
        """For each prefix all pairs whose key starts with it. One iterator for all, much cheaper than a range each."""
        cursor = self._open().iter(_bounds(None))
        try:
            return _by_prefix(cursor, prefixes)
        except Exception as error:
            raise explained(error, self.path, "prefixes") from error

    def close(self) -> None:
        """Free the lock at once. A range that is still being read ends with StoreClosed."""
        for cursor in list(self._cursors):
            cursor.release()
        db, self._db = self._db, None
        if db is not None:
            # It flushes first, which fails on a full disk: nothing is lost then, the rows are in the write-ahead log.
            with suppress(Exception):
                db.close()


def _by_prefix(cursor: RdictIter, prefixes: Sequence[bytes]) -> list[list[Pair]]:
    found: list[list[Pair]] = [[] for _ in prefixes]
    seek, valid, key, value, step = cursor.seek, cursor.valid, cursor.key, cursor.value, cursor.next
    before, here = b"", b""  # the prefix before this one, and the key that the cursor stands at
    for place in sorted(range(len(prefixes)), key=prefixes.__getitem__):
        prefix = prefixes[place]
        # A prefix within the one before has been passed; one that lies ahead of the cursor needs no seek.
        if here < prefix or prefix.startswith(before):
            seek(prefix)
        pairs = found[place]
        while valid():
            here = cast(bytes, key())
            if not here.startswith(prefix):
                break
            pairs.append((here, cast(bytes, value())))
            step()
        else:
            cursor.status()  # raises where damage, not the end of the store, stopped it
            here = b""
        before = prefix
    return found
