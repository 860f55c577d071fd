"""Where a task may begin: what the log, the changelog and the store say must agree, or it is refused (P4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from samovar.changelog.cursors import expired_if_gone
from samovar.changelog.formats.record import ROW, Position, row_parts
from samovar.changelog.log import Bounds, Delivery, Log, Records, Topic, TopicPartition
from samovar.common.errors import Refused
from samovar.state.store import Change, Store
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import InputSpec, Plan

EXPIRED = "Give the topic a longer retention. To go on without them, give the service another name."


def check_against_offsets(
    position: Position | None, committed: Mapping[TopicPartition, int | None], partition: int, delivery: Delivery
) -> None:
    """Refuse a state and offsets that do not belong together. Brokers forget offsets: then the state's own count."""
    for at, offset in committed.items():
        if offset is None:
            continue
        inputs = position.inputs.values() if position else ()
        stored = next((each for each in inputs if each.topic == at.topic), None)
        if position is None:
            raise Refused(
                "state-lost",
                f"the group's offsets say that {at} was processed up to {offset:,}, but the changelog of partition"
                f" {partition} is empty",
                "If the changelog is lost, rebuild it: `samovar restore --from source`. To start from nothing on"
                " purpose, give the service another name.",
            )
        if stored is not None and stored.next != offset and delivery is Delivery.EXACTLY_ONCE:
            raise Refused(
                "offsets-differ",
                f"the state of partition {partition} stands for {at} up to {stored.next:,}, and the group's offset is"
                f" {offset:,}",
                f"Offsets and state move together only: set the group's offset of {at} to {stored.next:,}, with Kafka's"
                " own tools. If nobody moved it and the store is ahead, a broker lost a commit: `samovar restore --from"
                " changelog`.",
            )


def check_against_changelog(position: Position | None, topic: Topic, partition: int) -> None:
    """Refuse half a rewind; and a state that was begun in another changelog: this one has only what came after."""
    if position is not None and position.rewinding:
        raise Refused(
            "rewind-unfinished",
            f"a rewind was ended while it wrote the changelog {topic.name}: the state of partition {partition} is half"
            " what it was and half what it is to be",
            "Run `samovar rewind` again; it begins again. `samovar restore --from source` brings back what was before.",
        )
    if position is None or not position.changelog or position.changelog == topic.id:
        return
    raise Refused(
        "changelog-recreated",
        f"the changelog {topic.name} was deleted and made again while the service ran: of the state of partition"
        f" {partition} it has only what changed since then",
        "Make it whole again from the input: `samovar restore --from source`.",
        f"topic id {topic.id}, the state was begun in {position.changelog}",
    )


def check_against_journal(position: Position, topic: Topic, numbers: Collection[int], partition: int) -> None:
    """Refuse a state whose journal was made again and lacks entries, by the numbers that it has."""
    lost = [number for number in range(1, position.journal + 1) if number not in numbers]
    if lost:
        raise Refused(
            "topic-recreated",
            f"the journal {topic.name} was deleted and made again: of the {position.journal:,} entries of partition"
            f" {partition} it lacks {len(lost):,}",
            "Put its records back from a copy, with the same keys and partitions. Without them the state cannot be"
            " rebuilt from the input, nor verified against it: take a copy of the state, and start under another"
            " service name.",
            f"topic id {topic.id}, the state was made with {position.journal_id}",
        )


def check_against_inputs(
    position: Position,
    specs: Sequence[InputSpec],
    topics: Mapping[str, Topic],
    bounds: Mapping[TopicPartition, Bounds],
    partition: int,
    past: Log | None = None,
) -> None:
    """Refuse a position that the input no longer has. Events that waited may also be read from `past`."""
    for spec in specs:
        stored = position.inputs.get(spec.stream)
        if stored is None or spec.retired:
            continue
        at = TopicPartition(spec.topic, partition)
        if stored.topic != spec.topic or stored.topic_id != topics[spec.topic].id:
            raise Refused(
                "input-replaced",
                f"the stream `{spec.stream}` is another topic than the state of partition {partition} was made from",
                "Point the stream to the topic it had, or start with fresh state under another service name."
                " If its `repartition` was changed: set that back, or give the task another name, under which it"
                " begins with empty stores.",
                f"state: {stored.topic} ({stored.topic_id}), now: {spec.topic} ({topics[spec.topic].id})",
            )
        begin, end = bounds[at]
        if stored.next > end:
            raise Refused(
                "input-truncated",
                f"the state of partition {partition} stands for {at} up to {stored.next:,}, and that ends at {end:,}",
                "The input lost records that were processed. Put them back, or `samovar restore --from source`.",
            )
        if past is not None and stored.replay_from < begin <= stored.next:
            begin = past.bounds([at])[at].begin
        if stored.replay_from < begin:
            raise Refused(
                "input-expired",
                f"{at} begins at {begin:,}: retention deleted records from {stored.replay_from:,} on that are needed",
                EXPIRED,
            )


def recover_waiting(log: Log, stream_source: StreamSource, position: Position, partition: int) -> None:
    """Bring back the events that waited for event time, by reading them again."""
    for stream, stored in position.inputs.items():
        if stream not in stream_source.sources:  # it is retired
            continue
        if stored.replay_from < stored.next:
            at = TopicPartition(stored.topic, partition)
            at_once = stream_source.tunables.recover_records
            stream_source.recover(stream, read_between(log, at, stored.replay_from, stored.next, at_once), stored)
        else:
            stream_source.sources[stream].next = stored.next


def rows_of_gone_rules(store: Store, plan: Plan) -> list[Change]:
    """Tombstones for states of rules and versions that are no more."""
    kept = plan.program.stores
    rows = (row for row, _ in store.range(ROW, bytes([ROW[0] + 1])))
    return [(row, None) for row in rows if row_parts(row)[1] not in kept]


def read_between(log: Log, at: TopicPartition, start: int, end: int, records_at_once: int) -> list[Records]:
    """All records of a short stretch."""
    reader = log.reader({at: start})
    found: list[Records] = []
    with closing(reader), expired_if_gone(EXPIRED):
        while reader.position(at) < end:
            found += reader.poll(records_at_once, 0.1)
    return [each for each in found if len(each)]
