"""What others do to a service that runs: a second container in its slot, topics made again, an input that grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from samovar.changelog.log import Append, Pair
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import Refused
from samovar.service.topology.logs import open_log
from samovar.tasks.model.clock import SetClock
from tests.faults import world
from tests.faults.conftest import Making
from tests.faults.ending import ends_right
from tests.faults.harness import Service, wait_until
from tests.faults.test_refusals import made_again
from tests.support.small_service import run

FOR_EVER = 1e9
KEYED = {world.STREAM: {**world.STREAMS[world.STREAM], "repartition": None}}


def processed(service: Service) -> bool:
    return service.committed() == service.written()


# ---------------------------------------------------------------- one slot, two machines


def test_a_newcomer_in_a_live_slot_of_another_machine_exits(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    """P6: the older one goes on and hears nothing of it."""
    service = make(world.RULES, world.STREAMS)
    source = world.events(3)
    service.append_pairs(world.STREAM, world.take(source, 100))
    first = service.start(host="one")
    wait_until(lambda: "running partitions 0" in first.text and processed(service), "the first is at work")
    second = service.start(config=service.elsewhere(), host="two", stale_s=FOR_EVER)
    assert second.ended() == 2, second.text
    assert "slot-taken: slot 0" in second.text
    assert "on one" in second.text
    service.append_pairs(world.STREAM, world.take(source, 100))
    wait_until(lambda: processed(service), "the first goes on")
    assert "starts again" not in first.text
    assert first.terminate() == 0
    service.nobody_there()
    ends_right(service, make_twin)


def test_the_slot_of_a_machine_that_is_gone_is_taken_once_no_heartbeat_comes(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    service = make(world.RULES, world.STREAMS)
    service.append_pairs(world.STREAM, world.take(world.events(4), 100))
    first = service.start(host="one")
    wait_until(lambda: "running partitions 0" in first.text and processed(service), "the first is at work")
    first.kill()
    service.append_pairs(world.STREAM, world.take(world.events(5), 100))
    second = service.start("--until-caught-up", config=service.elsewhere(), host="two", stale_s=3.0)
    assert second.ended() == 0, second.text
    service.nobody_there()
    ends_right(service, make_twin)


def test_a_restart_on_the_same_machine_waits_for_no_heartbeat(make: Making) -> None:
    service = make(world.RULES, world.STREAMS)
    service.append_pairs(world.STREAM, world.take(world.events(4), 100))
    first = service.start(host="one")
    wait_until(lambda: "running partitions 0" in first.text and processed(service), "the first is at work")
    first.kill()
    second = service.start("--until-caught-up", host="one", stale_s=FOR_EVER)
    assert second.ended() == 0, second.text


# ---------------------------------------------------------------- topics that are made again


@pytest.mark.parametrize(
    ("topic", "code"),
    [("changelog", "changelog-recreated"), ("journal", "topic-recreated"), ("input", "input-replaced")],
)
def test_a_running_container_refuses_a_topic_that_was_made_again(make: Making, topic: str, code: str) -> None:
    """P4."""
    service = make(world.RULES, world.STREAMS)
    service.append_pairs(world.STREAM, world.take(world.events(6), 50))
    settings = service.settings
    names = {"changelog": settings.changelog.topic, "journal": settings.journal.topic}
    with service.container(SetClock()) as container:
        container.watch.check_now()
        wait_until(lambda: bool(container.tasks) and container.caught_up(), "all is processed", container.cycle)
        container.watch.check_now()
        container.watch.check()
        made_again(service, names.get(topic, settings.streams[world.STREAM].topic))
        wait_until(lambda: container.watch.refused is not None, "it is noticed", container.watch.check_now)
        with pytest.raises(Refused) as refused:
            container.cycle()
        assert refused.value.code == code


def test_a_part_of_the_state_in_a_new_changelog_is_refused_though_the_store_is_lost(make_here: Making) -> None:
    """P4: the container wrote on for a moment before it noticed. What it wrote says which changelog it was begun in."""
    service = make_here(world.RULES, world.STREAMS)
    source = world.events(7)
    service.append_pairs(world.STREAM, world.take(source, 100))
    with service.container(SetClock()) as container:
        wait_until(lambda: bool(container.tasks) and container.caught_up(), "all is processed", container.cycle)
        made_again(service, service.settings.changelog.topic)
        service.append_pairs(world.STREAM, world.take(source, 100))
        wait_until(lambda: processed(service), "it writes on", container.cycle)
    service.wipe()
    service.refused("changelog-recreated", "samovar restore --from source")
    for source_of in ("changelog", "source"):
        done = run("restore", service.config, "--from", source_of)
        assert (done.exit_code == 0) is (source_of == "source"), done.output
    ended = service.run_to_end()
    assert "stopped" in ended
    assert run("verify", service.config).exit_code == 0


# ---------------------------------------------------------------- an input that grows


def grow(service: Service, partitions: int) -> None:
    kafka = service.settings.log.kafka
    assert kafka is not None
    topic = service.settings.streams[world.STREAM].topic
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result()
    wait_until(lambda: service.log.topics([topic])[topic].partitions == partitions, "it has grown")


def produce(service: Service, pairs: Sequence[Pair], partitions: int) -> None:
    """As a producer does that knows of so many partitions."""
    log = open_log(service.settings)
    topic = service.settings.streams[world.STREAM].topic
    log.append(
        [Append(topic=topic, records=[pair], partition=partition_of(pair[0] or b"", partitions)) for pair in pairs]
    )
    log.close()


def reasons(service: Service) -> list[str]:
    return [dict(row.headers)["__streams.errors.exception"].decode() for row in service.dead()]


def test_a_service_outlives_an_input_that_grows(make_kafka: Making) -> None:
    """P4, P8: it goes on with the partitions it knows; what has moved is put aside, what nobody reads is told."""
    service = make_kafka(world.RULES, KEYED)
    event = {"kind": "buy", "amount": 1, "place": "x", "ts": world.START_MS}
    service.append_pairs(world.STREAM, [(b"c1", json.dumps({"card": "c1", **event}).encode())])
    running = service.start()
    wait_until(lambda: processed(service), "all is processed")
    grow(service, 5)
    keys = [f"k{number}" for number in range(300)]
    moved = [key for key in keys if partition_of(key.encode(), 5) == 1 - partition_of(key.encode(), 2)][:3]
    unread = [key for key in keys if partition_of(key.encode(), 5) >= 2][:2]
    stayed = [key for key in keys if partition_of(key.encode(), 5) == partition_of(key.encode(), 2)][:4]
    pairs = [(key.encode(), json.dumps({"card": key, **event}).encode()) for key in [*moved, *unread, *stayed]]
    produce(service, pairs, 5)
    wait_until(lambda: processed(service), "it goes on")
    assert reasons(service) == ["key-moved"] * 3
    wait_until(lambda: "has 5 partitions now" in running.text, "it says so")
    shown = json.loads(run("status", service.config, "--json").stdout)
    assert [(each["stream"], each["read"], each["partitions"], each["unread"]) for each in shown["grown"]] == [
        (world.STREAM, 2, 5, 2)
    ]
    assert "starts again" not in running.text
    assert running.terminate() == 0
    assert "input-grown" in run("doctor", service.config).output
    assert "stopped: 0 events" in service.run_to_end()
    assert "3 dead letters redriven" in run("dlq", "redrive", service.config, "--reason", "key-moved").output
    assert "stopped: 3 events, 0 alerts, 0 late, 0 dead" in service.run_to_end()
    assert run("verify", service.config).exit_code == 0


def test_two_containers_share_what_was_there_before_one_of_two_inputs_grew(make_kafka: Making) -> None:
    """Each partition of all inputs is one container's, however many partitions one input has by now."""
    streams = {name: {**KEYED[world.STREAM], "partitions": 3, "idle": "1s"} for name in (world.STREAM, "other")}
    service = make_kafka(world.RULES, streams)
    assert service.partitions == 3
    service.run_to_end()
    grow(service, 8)
    pairs = world.take(world.events(9), 60)
    running = [service.start("--slot", str(slot)) for slot in range(2)]
    wait_until(lambda: all("running partitions" in each.text for each in running), "both are there")
    produce(service, pairs, 3)
    wait_until(lambda: processed(service), "all is processed")
    assert [each.terminate() for each in running] == [0, 0]
