"""How a disturbed run must end: as the oracle has it, with the state of a straight run, and with nothing left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka import admin as admin_module

from samovar.changelog.broker.process import wait_for
from samovar.changelog.embedded.locks import folder_of, live_slots
from samovar.common.errors import LogUnavailable
from tests.contracts.log_driving import unique
from tests.faults import world
from tests.faults.child import Running
from tests.faults.comparing import same_alerts, told_by_oracle
from tests.faults.harness import Service, wait_until

ASK_S = 30.0
ENDED_S = 1.5  # until a broker has told all partitions of a commit; one that was left open would last longer

admin: Any = admin_module  # most of its names are not exported as far as types go


def processed(service: Service) -> bool:
    """Whether the group's offsets are at the end of all inputs."""
    try:
        return service.committed() == service.written()
    except LogUnavailable:  # a transaction is pending: of one that hangs
        return False


def comes_back(zombie: Running, service: Service, before: object) -> None:
    """P6: one that was away for too long learns so, and writes nothing; then it works again."""
    wait_until(lambda: "starts again: " in zombie.text, "it learns that it is too late")
    wait_until(lambda: "running partitions 0" in zombie.text.split("starts again: ")[-1], "it is back")
    assert service.outputs() == before


def ends_right(service: Service, make_twin: Callable[[Service], Service]) -> None:
    """As the oracle has it (P1), with the state of a straight run (P2), nothing open and nothing held (P5)."""
    service.run_to_end()
    straight = make_twin(service)
    straight.run_to_end()
    assert service.digests() == straight.digests()
    world.end(service)
    service.run_to_end()
    same_alerts(service, told_by_oracle(service, world.STREAM))
    left_nothing(service)


def left_nothing(service: Service) -> None:
    """P5: after a stop no transaction is open and no lock is held. Call it when all containers have ended."""
    address = service.settings.log.kafka
    if address is None:
        assert service.settings.log.embedded is not None
        assert not live_slots(folder_of(service.settings.log.embedded, service.settings.service))
    else:
        wait_for(lambda: not open_transactions(service), ENDED_S)
        assert open_transactions(service) == []
    for partition in range(service.partitions):
        with service.store(partition):  # refused where another process has it
            pass


def never_committed(service: Service) -> int:
    """Records of the changelog that are in the log and that no reader is given: of transactions open, or aborted."""
    assert service.settings.log.kafka is not None
    topic, client = service.settings.changelog.topic, service.settings.log.kafka.librdkafka()
    told = {"group.id": unique("g"), "isolation.level": "read_uncommitted", "enable.partition.eof": True}
    reader = Consumer({**client, **told, "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0})
    try:
        reader.assign([KafkaPlace(topic, each, 0) for each in range(service.partitions)])
        ended, found = set[int](), 0
        while len(ended) < service.partitions:
            message = reader.poll(ASK_S)  # `consume` would wait for as many as it is asked for
            assert message is not None, f"{topic} is not read to its end within {ASK_S} s"
            error = message.error()
            if error is None:
                found += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
    finally:
        reader.close()
    return found - len(service.changelog())


def open_transactions(service: Service) -> list[str]:
    """Partitions of the service's topics with a transaction that is not ended: their last stable offset is behind."""
    assert service.settings.log.kafka is not None
    client = admin.AdminClient({**service.settings.log.kafka.librdkafka(), "log_level": "0"})
    topics = client.list_topics(timeout=ASK_S).topics
    mine = [name for name in topics if name.startswith(f"{service.settings.service}-")]
    assert mine, "the service has no topics"
    latest = {KafkaPlace(name, each): admin.OffsetSpec.latest() for name in mine for each in topics[name].partitions}

    def ends(level: IsolationLevel) -> dict[str, int]:
        told = client.list_offsets(latest, isolation_level=level).items()
        return {f"{place.topic}/{place.partition}": answer.result(ASK_S).offset for place, answer in told}

    stable, all_of_them = ends(IsolationLevel.READ_COMMITTED), ends(IsolationLevel.READ_UNCOMMITTED)
    return [place for place, end in all_of_them.items() if stable[place] < end]
