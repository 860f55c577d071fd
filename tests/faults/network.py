"""Services behind a network of ours, and whatever it can do to them, drawn one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

from tests.faults import child, world
from tests.faults.ending import processed
from tests.faults.harness import Service, wait_until
from tests.faults.proxy import BOTH, Delay, Leg, Proxy, Way

CLIENT = {
    "session.timeout.ms": "1500",
    "heartbeat.interval.ms": "200",
    "transaction.timeout.ms": "4000",
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "500",
    "socket.timeout.ms": "1000",
}
COMMIT_S = 2.0  # for which a container waits for what does not come
SLOTS = (0, 1)
INPUT = 60  # records with each fault
MOST_POLL = 12
SLOWEST_S = 0.15
LOSSES: tuple[tuple[str, Way], ...] = tuple(
    (api, way) for api in ("EndTxn", "TxnOffsetCommit", "Produce") for way in ("reply", "silence", "request")
)
ASKED = ("Fetch", "Produce", "EndTxn", "Heartbeat", None)
LEGS: tuple[tuple[Leg, ...], ...] = (BOTH, ("request",), ("reply",))


@dataclass(frozen=True)
class Loss:
    api: str
    way: Way


@dataclass(frozen=True)
class HalfOpen:
    api: str | None
    legs: tuple[Leg, ...]


@dataclass(frozen=True)
class Slowness:
    request: Delay
    reply: Delay


NetworkFault: TypeAlias = Loss | HalfOpen | Slowness


def through(service: Service, proxy: Proxy) -> Path:
    """The service file, by way of the proxy."""
    assert service.settings.log.kafka is not None
    path = service.folder / "through.yml"
    path.write_text(service.config.read_text().replace(service.settings.log.kafka.bootstrap, proxy.address))
    return path


def draw_fault(random_: Random) -> NetworkFault:
    kind = random_.randrange(3)
    if kind == 0:
        return Loss(*random_.choice(LOSSES))
    if kind == 1:
        return HalfOpen(random_.choice(ASKED), random_.choice(LEGS))
    return Slowness(_draw_delay(random_), _draw_delay(random_))


def _draw_delay(random_: Random) -> Delay:
    latency_s = random_.choice((0.0, random_.uniform(0.0, SLOWEST_S)))
    return Delay(latency_s, random_.uniform(0.0, SLOWEST_S))


def disturb(service: Service, proxy: Proxy, random_: Random, count: int) -> None:
    """So many faults, each under load and until all input is processed. Then both containers end well."""
    source = world.events(random_.randrange(1 << 30))
    config = through(service, proxy)
    running = [
        service.start("--slot", str(slot), poll=random_.randint(3, MOST_POLL), commit_s=COMMIT_S, config=config)
        for slot in SLOTS
    ]
    for number in range(count):
        service.append_pairs(world.STREAM, world.take(source, INPUT))
        wait_until(lambda: processed(service), "they are at work")
        fault = draw_fault(random_)
        print(f"{number}: {fault}", flush=True)  # noqa: T201 - how far a long run is
        before = [len(each.text) for each in running]
        happened = _arm(fault, proxy)
        service.append_pairs(world.STREAM, world.take(source, INPUT))
        if isinstance(fault, Loss):
            wait_until(happened.is_set, f"{fault} happens")
            _lift(fault, proxy, running, before)
        wait_until(lambda: processed(service), f"{fault}: all is processed")
    proxy.delay(Delay(), Delay())
    assert [each.terminate() for each in running] == [0 for _ in SLOTS], "\n".join(each.text for each in running)
    service.nobody_there()


def _arm(fault: NetworkFault, proxy: Proxy) -> threading.Event:
    """The event is set once something was lost. A slow network stays so until another one is drawn."""
    if isinstance(fault, Slowness):
        proxy.delay(fault.request, fault.reply)
        return threading.Event()
    if isinstance(fault, HalfOpen):
        return proxy.half_open(fault.legs, fault.api)
    return proxy.lose(fault.api, fault.way)


def _lift(fault: Loss, proxy: Proxy, running: Sequence[child.Running], before: Sequence[int]) -> None:
    """A network that is dark stays so until a container has noticed."""
    if fault.way != "reply":
        wait_until(
            lambda: any("starts again" in each.text[said:] for each, said in zip(running, before, strict=True)),
            f"{fault}: one of them gives up",
        )
        proxy.light()
