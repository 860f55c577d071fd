"""Who asks the HTTP process: questions at an even rate, and what the listeners tell."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import httpx2
import numpy as np

from benchmarks.load import CARDS

QUESTIONS = ("key", "alerts", "alert")
THREADS = 4


@dataclass
class Asked:
    """What was measured, in seconds, by kind of question; and what listeners heard, each and in all."""

    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in QUESTIONS})
    faults: list[str] = field(default_factory=list)
    heard: int = 0
    least: int = 0
    most: int = 0
    delays_ms: list[float] = field(default_factory=list)

    def p(self, name: str, share: float) -> float:
        return float(np.percentile(self.times[name], share)) * 1000 if self.times[name] else float("nan")

    @property
    def delay_ms(self) -> float:
        return float(np.percentile(self.delays_ms, 99)) if self.delays_ms else float("nan")

    def add_heard(self, told: str) -> None:
        """One line of benchmarks/http_listeners.py."""
        given = json.loads(told)
        self.heard += sum(given["heard"])
        self.least += min(given["heard"])
        self.most += max(given["heard"])
        self.delays_ms += given["delays_ms"]
        if given["ended"]:
            self.faults.append(f"{given['ended']} listeners were cut off")


@contextmanager
def asking(base: str, per_s: int, asked: Asked) -> Iterator[None]:
    """Questions at an even rate, from a few threads, each counted from the moment when it was due."""
    ending = threading.Event()
    threads = [
        threading.Thread(target=_ask, args=(base, per_s / THREADS, asked, ending, each)) for each in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def _ask(base: str, per_s: float, asked: Asked, ending: threading.Event, number: int) -> None:
    random, ids = Random(time.monotonic_ns() + number), [""]
    with httpx2.Client(base_url=f"{base}/api/v1", trust_env=False, timeout=30) as client:
        due = time.monotonic() + number / per_s / THREADS
        while not ending.wait(max(due - time.monotonic(), 0)):
            kind = random.choice(QUESTIONS) if ids[0] else "alerts"
            path = {
                "key": f"/keys/card-{random.randrange(CARDS):06d}",
                "alerts": "/alerts?rule=tried&limit=50",
                "alert": f"/alerts/{random.choice(ids)}",
            }[kind]
            try:
                answer = client.get(path)
                asked.times[kind].append(time.monotonic() - due)
                if answer.status_code != 200:
                    asked.faults.append(f"{path}: {answer.status_code}")
                elif kind == "alerts":
                    ids = [each["id"] for each in answer.json()["alerts"]] or ids
            except httpx2.HTTPError as error:
                asked.faults.append(f"{path}: {type(error).__name__}")
            due += 1 / per_s
