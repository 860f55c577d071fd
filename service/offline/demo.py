"""`samovar demo`: the two services of examples/ at work, with generated traffic, until Ctrl-C.

    demo ---- samovar run fraud      ---- samovar traffic fraud      ---- samovar serve fraud
         ---- samovar run sessions   ---- samovar traffic sessions   ---- samovar serve sessions

Each is a process of its own, as in earnest. This one starts them, follows their topics of alerts, and ends them. What
they say goes to `.samovar/demo.log` next to the service files, demo.yml. All state stays there, so that the next demo
goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape

from samovar.changelog.cursors import available_reader
from samovar.changelog.log import Log, Reader, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.runtime.processes import stopping
from samovar.service.topology.logs import opened
from samovar.service.topology.ruleset import rules_of
from samovar.service.topology.topics import ensure

SERVICES = ("fraud", "sessions")
CONFIG = "demo.yml"  # of each
CONTAINERS = {"fraud": 2, "sessions": 1}
SESSIONS_RATE = 200.0  # at most: every visit is reported, and more reports than that nobody reads
INTERRUPTED = 128 + 2
LOOK_S = 0.1
STATUS_S = 10.0
END_S = 60.0
PORTS_MOST = 100
WHOLE_MOST = 4  # alerts of a service that are shown with their events; each rule's first one has a line at least
MAX_RECORDS = 2_000
SEVERE = ("low", "medium", "high", "critical")  # of which the first alert of each rule is shown

SHOWN_EVENTS = 3  # of an alert
COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}
MARGIN = " " * 9
HIDDEN = ("type", "ts")
READ_S = 5.0


def show_alert(console: Console, rule: Rule, alert: Mapping[str, Any], events: Sequence[tuple[str, str]]) -> None:
    """`events` are the first matched ones: the step that each filled, and the event."""
    colour = COLOURS[rule.severity]
    head = f"[{colour}]{rule.severity:8}[/{colour}] [bold]{rule.id}[/bold] {escape(key_text(alert))}  "
    console.print(head + iso_time(alert["at"]), highlight=False, soft_wrap=True)
    console.print(MARGIN + escape(alert.get("message") or rule.title), highlight=False, soft_wrap=True)
    for step, line in events:
        text = escape(f"{step}: {event_text(line)}")
        console.print(f"{MARGIN}[dim]{text}[/dim]", highlight=False, soft_wrap=True)
    more = count_of(alert) - len(events)
    if more > 0:
        console.print(f"{MARGIN}[dim]and {more} more events[/dim]", highlight=False)


def show_line(console: Console, rule: Rule, alert: Mapping[str, Any]) -> None:
    """An alert in one line."""
    colour = COLOURS[rule.severity]
    text = escape(alert.get("message") or rule.title)
    head = f"[{colour}]{rule.severity:8}[/{colour}] [bold]{rule.id}[/bold] {escape(key_text(alert))}: {text}"
    console.print(head, highlight=False, soft_wrap=True)


def key_text(alert: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in alert["key"].items())


def count_of(alert: Mapping[str, Any]) -> int:
    """How many events matched; of very many, the alert names only some."""
    total: Mapping[str, int] = alert.get("total", {})
    return sum(total.get(step, len(places)) for step, places in alert["steps"].items())


def event_text(line: str) -> str:
    event = json.loads(line)
    fields = ", ".join(f"{name}={value}" for name, value in event.items() if name not in HIDDEN)
    return f"{event['type']} {fields}" if "type" in event else fields


def events_of(log: Log, alert: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The first matched events, read back from where the alert says that they are."""
    places = [(step, place) for step, taken in alert["steps"].items() for place in taken]
    return [(step, line) for step, place in places[:SHOWN_EVENTS] for line in _read(log, *place)]


def _read(log: Log, topic: str, partition: int, offset: int) -> Iterator[str]:
    with closing(available_reader(log, {TopicPartition(topic, partition): offset})) as reader:
        for records in reader.poll(1, READ_S)[:1]:
            if len(records) and int(records.offsets[0]) == offset:
                yield (records.value(0) or b"{}").decode()


@dataclass(frozen=True)
class DemoOptions:
    folder: Path
    rate: float
    seconds: float | None = None  # without it until stopped
    port: int = 8080  # of the first service's pages; each further one has the next that is free


@dataclass(kw_only=True)
class Service:
    """One of the services: its processes, and what was seen of its alerts."""

    settings: ServiceFile
    environment: Mapping[str, str]
    log: Log
    rules: Mapping[str, Rule]
    reader: Reader
    told: Path
    address: str  # of its pages
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    alerts: int = 0
    whole: int = 0
    rules_seen: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.settings.service


class Demo:
    """Both services. The source of truth for whether an end was asked for."""

    def __init__(self, console: Console, options: DemoOptions, environment: Mapping[str, str]) -> None:
        self._console = console
        self._options = options
        self._environment = dict(environment)
        self._services: list[Service] = []
        self._ports: list[int] = []
        self._stopped = False
        self._begun = time.monotonic()

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> int:
        """Until stopped; the exit code."""
        with ExitStack() as stack:
            for name in SERVICES:
                self._services.append(stack.enter_context(self._service(name)))
            failed = self._follow()
            code = self._end()
        return 1 if failed else code

    # ---------------------------------------------------------------- starting

    @contextmanager
    def _service(self, name: str) -> Iterator[Service]:
        config = self._options.folder / name / CONFIG
        if not config.is_file():
            raise Refused(
                "demo-missing",
                f"the demo needs the services fraud and sessions, and there is no {config}",
                "Name the folder that has them with --folder, or leave --folder out.",
            )
        settings = load_service(config, self._environment)
        told = config.parent / ".samovar" / "demo.log"
        told.parent.mkdir(exist_ok=True)
        with opened(settings) as log:
            ensure(log, settings)
            rules = {rule.id: rule for rule in rules_of(settings).rules}
            reader = log.reader(alerts_from_now(log, settings))
            port = free_port_from(self._ports[-1] + 1 if self._ports else self._options.port)
            self._ports.append(port)
            address = f"{settings.http.scheme}://127.0.0.1:{port}"
            service = Service(
                settings=settings,
                environment=self._environment | {"PYTHONUNBUFFERED": "1"},
                log=log,
                rules=rules,
                reader=reader,
                told=told,
                address=address,
            )
            rate = self._options.rate if name == "fraud" else min(self._options.rate, SESSIONS_RATE)
            containers = ["--containers", str(CONTAINERS[name]), "--answers-at", service.address]
            try:
                with told.open("ab") as out:
                    self._start(service, "run", ["run", str(config), *containers], out)
                    self._start(service, "traffic", ["traffic", str(config), "--rate", str(rate)], out)
                    self._start(service, "serve", ["serve", str(config), "--port", str(port)], out)
                self._say(f"[bold]{name}[/bold]: {described(service)}")
                yield service
            finally:
                for process in service.processes.values():
                    process.terminate()
                for process in service.processes.values():
                    process.wait()
                reader.close()

    def _start(self, service: Service, what: str, arguments: Sequence[str], out: IO[bytes]) -> None:
        command = [sys.executable, "-m", "samovar.service.cli", *arguments]
        service.processes[what] = subprocess.Popen(command, stdout=out, stderr=out, env=service.environment)

    # ---------------------------------------------------------------- following

    def _follow(self) -> bool:
        """Show alerts as they come. Whether a process ended by itself."""
        told = time.monotonic()
        while not self._ended():
            for service in self._services:
                self._take(service)
                for what, process in service.processes.items():
                    if process.poll() is not None and not self._stopped:
                        self._tell_ended(service, what, process.returncode)
                        return True
            if time.monotonic() - told >= STATUS_S:
                told = time.monotonic()
                counts = "; ".join(f"{service.name} {service.alerts:,} alerts" for service in self._services)
                self._say(f"[dim]{counts} since the start; Ctrl-C ends all[/dim]")
        return False

    def _ended(self) -> bool:
        seconds = self._options.seconds
        return self._stopped or (seconds is not None and time.monotonic() - self._begun >= seconds)

    def _take(self, service: Service) -> None:
        for records in service.reader.poll(MAX_RECORDS, LOOK_S / len(SERVICES)):
            for row in range(len(records)):
                service.alerts += 1
                self._show(service, json.loads(records.value(row) or b"{}"))

    def _show(self, service: Service, alert: Mapping[str, Any]) -> None:
        rule = service.rules.get(alert.get("rule", ""))
        if rule is None or rule.id in service.rules_seen or rule.severity not in SEVERE:
            return
        if not any(each.rules_seen for each in self._services):
            self._say(f"[dim]the first alert, after {time.monotonic() - self._begun:.1f} s[/dim]")
        service.rules_seen.add(rule.id)
        if service.whole < WHOLE_MOST:
            service.whole += 1
            show_alert(self._console, rule, alert, events_of(service.log, alert))
        else:
            show_line(self._console, rule, alert)

    def _tell_ended(self, service: Service, what: str, code: int) -> None:
        last = service.told.read_text("utf-8", "replace").splitlines()[-8:]
        self._say(f"[red]samovar {what} of {service.name} ended with {code}[/red]; its last words:")
        for line in last:
            self._console.print(f"  {line}", markup=False, highlight=False)
        if service.settings.log.kafka is None and any("input-expired" in line for line in last):
            kept = service.settings.state.parent
            self._say(f"It was stopped for longer than its streams keep events. To begin again: rm -r {kept}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    # ---------------------------------------------------------------- ending

    def _end(self) -> int:
        """Traffic first, then the containers, each after the batch at hand."""
        self._say("ending ...")
        codes = []
        for what in ("traffic", "run", "serve"):
            for service in self._services:
                service.processes[what].terminate()
            codes += [service.processes[what].wait(END_S) for service in self._services]
        for service in self._services:
            self._say(f"[bold]{service.name}[/bold]: {service.alerts:,} alerts in this demo")
        self._say(f"All is kept, in {self._options.folder}: the next demo goes on from here.")
        # The terminal sends Ctrl-C to all of them: one that only answers questions may end by it.
        code = max((code for code in codes if code > 0 and code != INTERRUPTED), default=0)
        idle = [service for service in self._services if not service.alerts]
        if idle and not self._stopped:
            self._say(f"[red]no alerts of {idle[0].name}[/red]; what it said: {idle[0].told}")
        return code or int(bool(idle) and not self._stopped)


def alerts_from_now(log: Log, settings: ServiceFile) -> dict[TopicPartition, int]:
    """The ends of the topic of alerts: what was found before was shown before."""
    topic = settings.alerts.topic
    partitions = [TopicPartition(topic, number) for number in range(log.topics([topic])[topic].partitions)]
    return {at: bounds.end for at, bounds in log.bounds(partitions).items()}


def described(service: Service) -> str:
    where = service.settings.log
    log = f"Kafka at {where.kafka.bootstrap}" if where.kafka is not None else "the embedded log"
    streams = ", ".join(service.settings.streams)
    head = f"{len(service.rules)} rules on {streams}, on {log}"
    return f"{head}\n  pages  {service.address}\n  file   {service.settings.path}\n  log    {service.told}"


def free_port_from(port: int) -> int:
    """The first port from here on at which nobody listens."""
    for number in range(port, port + PORTS_MOST):
        with suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", number))
            return number
    return port  # anyone who serves there will say that it is taken


def services_folder() -> Path:
    """The examples of a checkout. Those of an installed Samovar are copied here first: state is kept next to them."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    if (examples.parent / "pyproject.toml").is_file():
        return examples
    copy = Path("samovar-demo")
    if not copy.exists():
        shutil.copytree(examples, copy)
    return copy


@contextmanager
def on_broker(folder: Path, port: int, say: Callable[[str], None]) -> Iterator[str]:
    """A local broker. One that ran before goes on running; its data stays in any case."""
    from samovar.changelog.broker import node  # noqa: PLC0415 - its client takes long to load

    started = node.start(folder, port, say)
    try:
        yield started.address
    finally:
        if started.started:
            node.stop(folder)


def demo(console: Console, options: DemoOptions, kafka: str | None = None) -> int:
    """Runs both services until stopped; the exit code. `kafka` is a broker's address, instead of the embedded log."""
    environment = dict(os.environ)
    if kafka is not None:
        environment |= {"SAMOVAR_LOG__KAFKA__BOOTSTRAP": kafka, "SAMOVAR_STATE": ".samovar/demo/state-kafka"}
    running = Demo(console, options, environment)
    with stopping(running.stop, running.stop):
        return running.run()
