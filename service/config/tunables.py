"""The service file's section `tunables`: samovar.common.tunables, which says what each of them is."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from samovar.common.tunables import DEFAULTS, Tunables
from samovar.service.config.types import Count, Model, read_size, shown, wrong


def read_bytes(value: Any) -> int:
    size = read_size(value)
    return size if size > 0 else wrong(f"{shown(value)} is nothing at all", expected="a size from 1B on")


Bytes: TypeAlias = Annotated[int, BeforeValidator(read_bytes)]


class TunableSettings(Model):
    """How much is done at once. No result depends on it."""

    poll_records: Count = DEFAULTS.poll_records
    commit_polls: Count = DEFAULTS.commit_polls
    pending_events: Count = DEFAULTS.pending_events
    pending_bytes: Bytes = DEFAULTS.pending_bytes
    step_bytes: Bytes = DEFAULTS.step_bytes
    piece_records: Count = DEFAULTS.piece_records
    mark_records: Count = DEFAULTS.mark_records
    recover_records: Count = DEFAULTS.recover_records
    memory_commits: Count = DEFAULTS.memory_commits
    memory_rows: Count = DEFAULTS.memory_rows
    whole_states: Count = DEFAULTS.whole_states
    index_rows: Count = DEFAULTS.index_rows
    rebuilt_rows: Count = DEFAULTS.rebuilt_rows
    digest_rows: Count = DEFAULTS.digest_rows
    chunk_events: Count = DEFAULTS.chunk_events
    header_events: Count = DEFAULTS.header_events
    header_bytes: Bytes = DEFAULTS.header_bytes
    slice_rows: Count = DEFAULTS.slice_rows
    cold_rows: Count = DEFAULTS.cold_rows
    memo_results: Count = DEFAULTS.memo_results
    restore_records: Count = DEFAULTS.restore_records
    restore_rows: Count = DEFAULTS.restore_rows
    restore_bytes: Bytes = DEFAULTS.restore_bytes
    table_rows: Count = DEFAULTS.table_rows
    file_rows: Count = DEFAULTS.file_rows
    replay_records: Count = DEFAULTS.replay_records
    replay_events: Count = DEFAULTS.replay_events
    replay_bytes: Bytes = DEFAULTS.replay_bytes
    replay_rows: Count = DEFAULTS.replay_rows
    burst_records: Count = DEFAULTS.burst_records
    append_rows: Count = DEFAULTS.append_rows
    look_back_records: Count = DEFAULTS.look_back_records
    few_records: Count = DEFAULTS.few_records
    feed_bytes: Bytes = DEFAULTS.feed_bytes
    segment_bytes: Bytes = DEFAULTS.segment_bytes
    fetch_bytes: Bytes = DEFAULTS.fetch_bytes
    join_bytes: Bytes = DEFAULTS.join_bytes
    join_segments: Count = DEFAULTS.join_segments
    joined_segments: Count = DEFAULTS.joined_segments
    compact_bytes: Bytes = DEFAULTS.compact_bytes
    compact_keys: Count = DEFAULTS.compact_keys
    dirty_bytes: Bytes = DEFAULTS.dirty_bytes
    retain_segments: Count = DEFAULTS.retain_segments

    def tunables(self, cache_bytes: int, snapshot_every_ms: int) -> Tunables:
        """All of them, with those that have a place of their own in the file."""
        return Tunables(**self.model_dump(), cache_bytes=cache_bytes, snapshot_every_ms=snapshot_every_ms)
