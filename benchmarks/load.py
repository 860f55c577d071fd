"""Purchases at an even rate, each with the moment it was made as its time.

    python -m benchmarks.load BROKER TOPIC RATE SECONDS

A process of its own, so that the one who measures is not held up. Prints how many were sent and by how many ms the
slowest was behind its time.
"""

from __future__ import annotations

import sys
import time
from random import Random

from confluent_kafka import Producer

CARDS = 5_000
SMALL_SHARE, BIG_SHARE = 0.25, 0.05  # so that about one in 35 is an alert
EVERY_S = 0.001
SETTINGS = {"partitioner": "murmur2_random", "enable.idempotence": True}


def amount(random: Random) -> float:
    kind = random.random()
    if kind < SMALL_SHARE:
        return round(random.uniform(0, 1.99), 2)
    return 300.0 if kind < SMALL_SHARE + BIG_SHARE else round(random.uniform(2, 100), 2)


def put(producer: Producer, topic: str, event: str, card: str) -> None:
    """Waits where the broker does not keep up; it shows as time behind."""
    while True:
        try:
            producer.produce(topic, event, card)
            return
        except BufferError:
            producer.poll(EVERY_S)


def main(address: str, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": address, **SETTINGS})
    random, sent, behind = Random(3), 0, 0.0
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed * rate)
        behind = max(behind, (due - sent) / rate)
        now = time.time_ns() // 1_000_000
        for _ in range(due - sent):
            card = f"card-{random.randrange(CARDS):06d}"
            event = f'{{"card":"{card}","amount":{amount(random)},"merchant":"m","country":"US","ts":{now}}}'
            put(producer, topic, event, card)
        sent = due
        producer.poll(EVERY_S)
    producer.flush()
    print(f"sent {sent} behind {behind * 1000:.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
