"""How much is done at once: sizes of batches, chunks and caches. The one place where such numbers stand.

A tunable changes speed and memory, never a result: the tests draw tiny random values for all of them. Whatever does
change a result (slack, idle, limits) is a setting of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Tunables:
    """All of them: the section `tunables` of the service file, `cache`, and `snapshots: {every}`."""

    # One cycle of a container.
    poll_records: int = 50_000  # per poll
    commit_polls: int = 3  # per commit at most, while so much comes, where many of its events change the same rows
    pending_events: int = 200_000  # of a task, waiting for event time, before inputs that are ahead are paused
    pending_bytes: int = 64 * MB  # and what these may take; beyond it there is at most what one cycle takes in
    step_bytes: int = 64 * MB  # of matches that a batch may find; one that finds more is taken in pieces
    piece_records: int = 32_768  # of a piece, which doubles per commit; beyond it batches are whole again
    mark_records: int = 5_000  # between two marks of a position: what a restart may read too much
    recover_records: int = 20_000  # per poll, while waiting events are read again
    snapshot_every_ms: int = 600_000

    # State in memory.
    cache_bytes: int = 128_000_000  # of the states of a container
    memory_commits: int = 32  # between two looks at the memory in use
    memory_rows: int = 20_000  # changed by one commit, after which it is looked at too
    whole_states: int = 100_000  # up to so many are always all in memory, and need no index of deadlines
    index_rows: int = 4_000  # that are looked at together while that index is built
    rebuilt_rows: int = 20_000  # of other local indexes, written together when they are rebuilt
    digest_rows: int = 20_000  # looked at together

    # Rows of states, in the kernel.
    chunk_events: int = 128  # of a state, stored in one row
    header_events: int = 24  # that a header row holds itself; of a state that had chunks, a quarter of it
    header_bytes: int = 128 << 10  # of a header in one row
    slice_rows: int = 131_072  # of a batch, evaluated together
    cold_rows: int = 16_384  # of a batch, looked at together for keys that are not in memory
    memo_results: int = 200_000  # of Python functions, remembered before all of them are forgotten

    # Restores and replays.
    restore_records: int = 50_000  # of a changelog, per poll
    restore_rows: int = 400_000  # newest values held before they are written
    restore_bytes: int = 128 * MB  # and bytes of records, older values among them
    table_rows: int = 20_000  # more than so many go to the store as a file, into an empty one always
    file_rows: int = 2_000_000  # of a table file; a store that is copied becomes several
    replay_records: int = 50_000  # of an input, per poll
    replay_events: int = 200_000  # between two writes to the store
    replay_bytes: int = 64 * MB  # of matches, likewise
    replay_rows: int = 65_536  # of recorded events, sorted before and taken through the rules together
    burst_records: int = 16  # fed together where one event can complete many matches
    append_rows: int = 100_000  # of a repaired changelog, per transaction
    look_back_records: int = 20_000  # of a changelog, looked at first for the end of a commit; then ten times as many
    few_records: int = 10_000  # up to so many are read by a reader for a few
    spark_connector: bool = True  # by which jobs on Spark read Kafka; else by our own reader, in executors too
    feed_bytes: int = 64 * MB  # of records from Spark that wait for their turn in memory; more of them wait on disk

    # An archive.
    archive_records: int = 1_000_000  # of a file, at most
    archive_bytes: int = 256 * MB  # and of their values, about
    archive_group_records: int = 100_000  # of a row group
    archive_group_bytes: int = 32 * MB  # likewise

    # The embedded log.
    segment_bytes: int = 1 * MB  # a segment ends before it passes this, unless one record alone does
    fetch_bytes: int = 32 * MB  # per poll
    join_bytes: int = 128 << 10  # segments smaller than this are joined
    join_segments: int = 32  # of these at the end of a partition, before they are joined
    joined_segments: int = 256  # at most, at once
    compact_bytes: int = 2 * MB  # per step of compaction
    compact_keys: int = 500_000  # of one pass, which ends early where it meets more
    dirty_bytes: int = 1 * MB  # written since the last pass, before another one begins
    retain_segments: int = 256  # per step of retention


DEFAULTS = Tunables()
