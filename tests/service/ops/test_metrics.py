"""Metrics: what is served is what happened, the page lists what is served, and nobody waits for it."""

from __future__ import annotations

import io
import json
import logging
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from samovar.changelog.broker.process import free_port
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.common.errors import Refused
from samovar.service.auth.tokens import Role, add_token, remove_token
from samovar.service.ops.log_output import forward_kafka_logs, make_logger
from samovar.service.ops.metrics import ARCHIVE_METRICS, COUNTS, METRICS, ContainerMetrics, Kind
from samovar.service.runtime.metrics_server import address_of, serving
from samovar.tasks.model.clock import SystemClock
from samovar.tasks.model.results import Counts
from samovar.tasks.runtime.commit_times import BOUNDS_S, CommitTimes
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.heartbeat import HeartbeatReporter
from samovar.tasks.runtime.metrics import MetricsSampler
from tests.support.http_server import wait_for
from tests.support.project import ROOT
from tests.support.small_service import Service, catch_up, make, many, purchase, run, wipe

PAGE = ROOT / "docs" / "metrics.md"
_LISTED = re.compile(r"^\| `samovar_(\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Watched:
    """A container whose metrics are asked for over HTTP."""

    def __init__(self, service: Service, container: Container, log: EmbeddedLog, host: str = "127.0.0.1") -> None:
        self.container = container
        self.observer = MetricsSampler(container, SystemClock())
        self.reporter = HeartbeatReporter(log, "s", self.observer)
        self.port = free_port("127.0.0.1")
        collector = ContainerMetrics("s", self.reporter, container.commit_times)
        self.server = ExitStack()
        self.server.enter_context(serving(service.settings, log, address_of(f"{host}:{self.port}"), collector))

    def snapshot(self) -> None:
        self.observer(now=True)
        self.reporter.report()

    def scrape(self) -> Scraped:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        samples = [each for family in families for each in family.samples]
        return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def watched(service: Service) -> Iterator[Watched]:
    service.produce([*many(80), {"card": "c1", "amount": "x", "ts": 5}])
    with service.container() as container, service.log() as log:
        found = Watched(service, container, log)
        found.snapshot()
        yield found
        found.close()


def of(scraped: Scraped, name: str, **labels: str) -> float:
    """The sum over all series that have these labels."""
    found = [
        value for (sample, own), value in scraped.items() if sample == f"samovar_{name}" and labels.items() <= set(own)
    ]
    assert found, name
    return sum(found)


# ---------------------------------------------------------------- what is served


def test_counts_are_those_of_the_container(watched: Watched) -> None:
    found = watched.scrape()
    counts = watched.container.status().counts
    assert (of(found, "events_total"), of(found, "dead_total")) == (81, 1)
    assert of(found, "alerts_total") == counts.matches > 0
    assert of(found, "commit_seconds_count") == watched.container.commit_times.buckets()[-1][1] > 0
    assert of(found, "container", service="s", slot="0") == 1
    assert of(found, "tasks", life="running") == 2
    assert of(found, "heartbeat_ok") == 1


def test_a_rules_matches_partials_and_time(watched: Watched) -> None:
    found = watched.scrape()
    by_rule = {rule: of(found, "rule_matches_total", rule=rule) for rule in ("testing", "countries", "unusual")}
    assert sum(by_rule.values()) == of(found, "alerts_total")
    assert of(found, "rule_live_partials", rule="testing") > 0
    assert all(0 < of(found, "rule_seconds_total", rule=rule) < 10 for rule in by_rule)


def test_lag_and_who_holds_event_time(watched: Watched, service: Service) -> None:
    assert of(watched.scrape(), "lag_events") == 0
    service.produce([purchase("c1", 900, 3)] * 7)
    watched.snapshot()
    found = watched.scrape()
    place = str(service.partition("c1"))
    assert of(found, "lag_events", partition=place) == of(found, "lag_events", stream="purchase") == 7
    held = {own for (name, own) in found if name == "samovar_watermark_blocked_by"}
    assert len(held) == 2
    assert of(found, "watermark_age_seconds", partition=place) > 0
    catch_up(watched.container)
    watched.snapshot()
    found = watched.scrape()
    assert (of(found, "lag_events"), of(found, "lag_seconds")) == (0, 0)


def test_state_has_a_size(watched: Watched) -> None:
    found = watched.scrape()
    assert of(found, "state_bytes") > 0
    assert of(found, "state_memory_bytes") > 0


def test_counters_never_go_back(watched: Watched, service: Service) -> None:
    """A state that is let go of, and a task that closes, begin again at 0; what is shown does not."""
    before = watched.scrape()
    for task in watched.container.tasks.values():
        task.processor.evict()
    service.produce(many(80, start_s=2_000))
    catch_up(watched.container)
    watched.snapshot()
    between = watched.scrape()
    watched.container.close()
    watched.snapshot()
    after = watched.scrape()
    for name, spec in METRICS.items():
        if spec.kind is Kind.COUNTER and not spec.labels:
            assert of(before, f"{name}_total") <= of(between, f"{name}_total") <= of(after, f"{name}_total"), name
    for each in (before, between, after):
        assert of(each, "rule_matches_total") == of(each, "alerts_total")
    assert of(before, "alerts_total") < of(between, "alerts_total")


def test_a_restore_shows_rate_and_time_left(service: Service) -> None:
    service.process(many(200, cards=60))
    wipe(service)
    with service.container() as container, service.log() as log:
        found = Watched(service, container, log)
        found.snapshot()
        scraped = found.scrape()
        found.close()
    assert of(scraped, "restored_records_total") > 0


def test_nothing_is_served_before_the_first_look(service: Service) -> None:
    service.produce(many(5))
    with service.container() as container, service.log() as log:
        found = Watched(service, container, log)
        assert found.scrape() == {}
        found.close()


def test_an_address_is_a_port_or_a_host_and_a_port() -> None:
    assert (address_of("9400").host, address_of("9400").port) == ("127.0.0.1", 9400)
    assert address_of("0.0.0.0:9400").host == "0.0.0.0"
    for text in ("x", "70000", "h:", ""):
        with pytest.raises(Refused) as refused:
            address_of(text)
        assert refused.value.code == "bad-address"


def test_a_port_that_is_taken(service: Service) -> None:
    service.produce(many(5))
    with service.container() as container, service.log() as log:
        first = Watched(service, container, log)
        collector = ContainerMetrics("s", first.reporter, container.commit_times)
        with pytest.raises(Refused) as refused, serving(service.settings, log, address_of(str(first.port)), collector):
            pass
        first.close()
    assert refused.value.code == "metrics-port-taken"


def test_metrics_that_others_can_reach_need_a_token(service: Service) -> None:
    service.produce(many(5))
    with service.container() as container, service.log() as log:
        with pytest.raises(Refused, match="access-required"):
            Watched(service, container, log, host="0.0.0.0")
        token = add_token(service.settings, log, "prometheus", Role.VIEWER, "test")
        found = Watched(service, container, log, host="0.0.0.0")
        found.snapshot()

        shows: list[bool] = []

        def status(shown: str | None) -> int:
            nonlocal shows
            headers = {} if shown is None else {"authorization": f"Bearer {shown}"}
            asked = urllib.request.Request(f"http://127.0.0.1:{found.port}/metrics", headers=headers)
            try:
                with urllib.request.urlopen(asked) as answer:
                    assert b"samovar_container" in answer.read()
                    return int(answer.status)
            except HTTPError as refused:
                shows += [b"samovar_" in refused.read()]
                return refused.code

        assert [status(None), status("smv_wrong"), status(""), status(token)] == [401, 401, 401, 200]
        remove_token(service.settings, log, "prometheus")
        wait_for(lambda: status(token) == 401)
        assert not any(shows)
        found.close()


def test_commit_times_are_a_histogram() -> None:
    times = CommitTimes()
    for seconds in (0.0005, 0.001, 0.02, 99.0):
        times.add(seconds)
    found = dict(times.buckets())
    assert (found["0.001"], found["0.025"], found[str(BOUNDS_S[-1])], found["+Inf"]) == (2, 3, 3, 4)
    assert times.sum_s == pytest.approx(99.0215)


# ---------------------------------------------------------------- the page


def test_the_page_lists_what_is_served_and_no_more() -> None:
    listed = {name: (kind, labels) for name, kind, labels in _LISTED.findall(PAGE.read_text("utf-8"))}
    wanted = {
        name + "_total" * (spec.kind is Kind.COUNTER): (spec.kind.value, ", ".join(spec.labels))
        for name, spec in (METRICS | ARCHIVE_METRICS).items()
    }
    assert {name: (kind, labels.strip()) for name, (kind, labels) in listed.items()} == wanted


def test_everything_that_a_task_counts_is_a_metric() -> None:
    """P8: nothing is counted that nobody can see."""
    assert {field.name for field in fields(Counts)} <= COUNTS.keys()
    assert set(COUNTS.values()) <= METRICS.keys()


# ---------------------------------------------------------------- structured logs


def test_lines_are_json_with_facts(service: Service) -> None:
    service.produce(many(30))
    done = run("run", service.config, "--until-caught-up", "--log", "json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["started", "tasks", "stopped"]
    assert {(line["service"], line["container"], line["level"]) for line in lines} == {("s", 0, "info")}
    assert lines[-1]["events"] == 30
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[0]["time"])


def test_a_refusal_is_a_line_too(service: Service) -> None:
    service.config.write_text("service: s\n")
    done = run("run", service.config, "--log", "json")
    assert done.exit_code == 2
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["level"]) == ("refused", "error")
    assert run("run", service.config, "--log", "xml").exit_code == 2


def test_every_line_for_people_says_when(service: Service) -> None:
    service.produce(many(30))
    done = run("run", service.config, "--until-caught-up")
    lines = [line.partition(" ") for line in done.stderr.splitlines()]
    assert lines[0][2] == "container 0 of s: 3 rules, exactly_once"
    assert lines[-1][2].startswith("container 0 stopped: 30 events, ")
    times = [time for time, _, _ in lines]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times), times
    assert times == sorted(times)


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_the_kafka_client_says_is_a_line_like_all_others(form: str) -> None:
    out = io.StringIO()
    with forward_kafka_logs(make_logger(form, out, "s", 0)):
        logging.getLogger("samovar.kafka.reading").warning("the broker is away")
    (line,) = out.getvalue().splitlines()
    told = json.loads(line) if form == "json" else dict(zip(("time", "_", "text"), line.partition(" "), strict=True))
    assert told["text"] == "the broker is away"
    assert re.fullmatch(r"[\dT:.-]+Z", told["time"])


# ---------------------------------------------------------------- what waits


def test_events_that_wait_for_event_time_are_a_number_and_on_a_quiet_stream_none_do(service: Service) -> None:
    service.produce([purchase("c1", 0, 5), purchase("c1", 1, 5)])
    with service.container() as container, service.log() as log:
        found = Watched(service, container, log)
        try:
            found.snapshot()
            assert of(found.scrape(), "waiting_events") == 2  # within the slack
            for _ in range(3):
                service.clock.pass_ms(60_000)
                catch_up(container)
            found.snapshot()
            scraped = found.scrape()
            assert (of(scraped, "waiting_events"), of(scraped, "lag_events")) == (0, 0)
        finally:
            found.close()
