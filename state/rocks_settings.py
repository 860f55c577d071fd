"""How RocksDB is set up: for millions of small rows, read in bulk by whole key, in a bounded amount of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rocksdict import BlockBasedOptions, Cache, DataBlockIndexType, DBCompressionType, Options, WriteBufferManager

MB = 1 << 20


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
    """Options of a store that is opened for writing, and of the files that are ingested into it."""
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_write_buffer_manager(memory.buffers)
    made.set_write_buffer_size(max(memory.write_buffer_bytes // 2, MB))
    made.set_max_write_buffer_number(3)
    made.set_allow_concurrent_memtable_write(False)  # there is one writer
    made.set_level_compaction_dynamic_level_bytes(True)
    made.set_compression_type(DBCompressionType.lz4())
    made.set_max_background_jobs(2)
    made.set_block_based_table_factory(_blocks(memory))
    _quiet(made)
    return made


def _blocks(memory: RocksMemory) -> BlockBasedOptions:
    """Bloom filters over whole keys, and a hash index in each block: most reads ask for one exact key."""
    made = BlockBasedOptions()
    made.set_block_cache(memory.cache)
    made.set_bloom_filter(10, False)
    made.set_block_size(4096)
    made.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    made.set_data_block_hash_ratio(0.75)
    made.set_cache_index_and_filter_blocks(True)
    made.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return made


def _quiet(made: Options) -> None:
    """Little of RocksDB's own log, and no statistics: a state folder holds state."""
    made.set_keep_log_file_num(2)
    made.set_max_log_file_size(MB)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
