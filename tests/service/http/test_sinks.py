"""Alert sinks: a real receiver, which refuses, hangs up and comes back; a file; a process that ends on the way."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from samovar.service.http.sinks import DeliveryStopped, FileTarget, Sinks
from samovar.service.topology.logs import opened
from tests.support.http_server import wait_for
from tests.support.small_service import SERVICE, Service, make, purchase

SECRET = "a-secret-of-the-receiver"


@dataclass
class Receiver:
    """A webhook. `answers` are the next statuses; then 204."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [headers["samovar-alert"] for headers, _ in self.got]


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = found.answers.pop(0) if found.answers else 204
            if status == 204:
                found.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def alerting(card: str, second: int) -> list[dict[str, Any]]:
    return [purchase(card, second + later, amount) for later, amount in [(0, 1), (1, 1), (2, 900), (30, 3)]]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    made.process(alerting("before", 0))
    return made


def with_sinks(service: Service, text: str) -> None:
    service.config.write_text(f"{SERVICE}sinks:\n  {text}\n")


@contextmanager
def running(service: Service) -> Iterator[Sinks]:
    settings = service.settings
    with opened(settings) as log:
        sinks = Sinks(settings, log)
        sinks.start()
        try:
            wait_for(lambda: all(report.partitions == 2 for report in sinks.reports()))
            yield sinks
        finally:
            sinks.close()


def ids_of(service: Service) -> list[str]:
    """Of all alerts but those before the sink was there."""
    from samovar.service.query.read import ReadOptions, bounded  # noqa: PLC0415 - only here

    with service.log() as log:
        found = [json.loads(record.value or b"") for record in bounded(log, "s-alerts", ReadOptions())]
    return sorted(each["id"] for each in found if each["key"]["card"] != "before")


def test_a_webhook_gets_each_alert_signed_as_the_topic_has_it(service: Service) -> None:
    with receiver() as hook:
        with_sinks(service, f"soc: {{url: 'http://127.0.0.1:{hook.port}/in?a=b', secret: {SECRET}}}")
        with running(service):
            service.process(alerting("a", 100))
            wait_for(lambda: sorted(hook.ids) == ids_of(service))
        headers, body = hook.got[0]
        at, _, signature = headers["samovar-signature"].removeprefix("t=").partition(",v1=")
        made = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(signature, made)
        assert json.loads(body)["key"] == {"card": "a"}
        assert headers["idempotency-key"] == json.loads(body)["id"]
        assert (headers["samovar-service"], headers["samovar-sink"]) == ("s", "soc")


def test_what_passes_is_tried_again_and_nothing_is_lost(service: Service) -> None:
    with receiver() as hook:
        with_sinks(service, f"soc: {{url: 'http://127.0.0.1:{hook.port}', max_backoff: 50ms}}")
        with running(service) as sinks:
            hook.answers += [503, 500, 429]
            service.process(alerting("a", 100))
            wait_for(lambda: sorted(hook.ids) == ids_of(service))
            wait_for(lambda: sinks.reports()[0].waiting == 0)
            assert sinks.reports()[0].failed == 3
            assert sinks.reports()[0].trouble is None


def test_what_the_receiver_refuses_for_good_does_not_hold_up_the_rest(service: Service) -> None:
    with receiver() as hook:
        with_sinks(service, f"soc: {{url: 'http://127.0.0.1:{hook.port}', max_backoff: 10ms, rules: [testing]}}")
        with running(service) as sinks:
            hook.answers += [400, 302, 400, 400, 400]
            service.process(alerting("a", 100))
            wait_for(lambda: sinks.reports()[0].failed >= 6)
            service.process(alerting("b", 200))
            wait_for(lambda: len(hook.got) == 1)
        assert json.loads(hook.got[0][1])["key"] == {"card": "b"}


def test_a_process_that_ended_goes_on_where_it_was(service: Service) -> None:
    with receiver() as hook:
        port = hook.port
        with_sinks(service, f"soc: {{url: 'http://127.0.0.1:{port}', max_backoff: 50ms}}")
        with running(service):
            service.process(alerting("a", 100))
            wait_for(lambda: sorted(hook.ids) == ids_of(service))
        first = list(hook.ids)
    with running(service) as sinks:  # nobody is there to receive
        service.process(alerting("b", 200))
        wait_for(lambda: sinks.reports()[0].failed > 0)
        assert sinks.reports()[0].trouble == "the receiver does not answer"
    service.process(alerting("c", 300))  # nobody is there to send
    with receiver(port) as hook, running(service) as sinks:
        wait_for(lambda: sinks.reports()[0].waiting == 0 and len(hook.ids) >= len(ids_of(service)) - len(first))
        assert sorted({*first, *hook.ids}) == ids_of(service)
        assert len(hook.ids) == len(set(hook.ids))


def test_a_file_gets_a_line_an_alert_and_repairs_a_half_line(service: Service) -> None:
    path = service.config.parent / "out" / "alerts.jsonl"
    path.parent.mkdir()
    path.write_text('{"id": "half of a l')
    with_sinks(service, "archive: {file: out/alerts.jsonl}")
    with running(service):
        service.process(alerting("a", 100))
        wait_for(lambda: len(path.read_text().splitlines()) == 1 + len(ids_of(service)))
    _, *lines = path.read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == ids_of(service)


def test_a_file_that_cannot_be_written_is_tried_again_within_the_bound(tmp_path: Path) -> None:
    waits: list[float] = []

    def wait(pause_s: float) -> None:
        waits.append(pause_s)
        if len(waits) == 12:
            raise DeliveryStopped

    with pytest.raises(DeliveryStopped):
        FileTarget(tmp_path, 3.0).deliver([], wait, lambda _: None)  # a folder
    assert max(waits) <= 3.0
    assert waits[0] <= 0.5
