"""Purchases at an even rate, each with the moment it was made as its time.

    python -m benchmarks.load BROKER TOPIC RATE SECONDS [LINGER_MS]

A process of its own, so that the one who measures is not held up, and cheap, since it runs next to what is measured: an
event is put together from texts that were made before. Prints how many were sent and by how many ms the slowest was
behind its time.
"""

from __future__ import annotations

import sys
import time
from random import Random

import numpy as np
from confluent_kafka import Producer

CARDS = 5_000
AMOUNTS = 200_000
SMALL_SHARE, BIG_SHARE = 0.25, 0.05  # so that about one in 35 is an alert
LINGER_MS = 5.0  # librdkafka's own
TURNS = 5  # in the time that a request is waited for
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
            producer.poll(0.001)


def main(address: str, topic: str, rate: int, seconds: float, linger_ms: float = LINGER_MS) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": linger_ms, **SETTINGS})
    random, picked, sent, behind = Random(3), np.random.default_rng(3), 0, 0.0
    cards = [f"card-{number:06d}" for number in range(CARDS)]
    amounts = [f'","amount":{amount(random)},"merchant":"m","country":"US","ts":' for _ in range(AMOUNTS)]
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed * rate)
        behind = max(behind, (due - sent) / rate)
        now = time.time_ns() // 1_000_000
        who, what = picked.integers(CARDS, size=due - sent), picked.integers(AMOUNTS, size=due - sent)
        for card, rest in zip(who.tolist(), what.tolist(), strict=True):
            put(producer, topic, f'{{"card":"{cards[card]}{amounts[rest]}{now}}}', cards[card])
        sent = due
        producer.poll(0)
        time.sleep(linger_ms / TURNS / 1000)
    producer.flush()
    print(f"sent {sent} behind {behind * 1000:.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:]))
