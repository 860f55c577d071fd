"""Records that retention takes after a partition's bounds were asked for and before it is read: questions about what is
there leave them out, what promises to be whole refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from samovar.changelog.cursors import read_all
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats import heartbeat
from samovar.changelog.log import Append, Records, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.service.auth import audit
from samovar.service.backtest.current import read_between
from samovar.service.backtest.run import backtest
from samovar.service.ops.status import first_times
from samovar.service.query.read import ReadOptions, bounded, follow
from samovar.service.topology.copartitioning import _sample_records
from samovar.tasks.input import startup_checks
from tests.service.rules.test_rule_changes import alerts, published, take, tide
from tests.service.rules.test_rule_starts import NEW_COUNTRY
from tests.support.retention import retention_strikes
from tests.support.small_service import HOUR, RULES, START, Service, catch_up, make, many, purchase, run

DAY = 24 * HOUR
TOPIC = "t"
AT = TopicPartition(TOPIC, 0)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Its first events have expired by now, and are still there; its last have not."""
    made = make(tmp_path / "s")
    made.clock.now_ms -= 8 * DAY
    return made


def offsets(found: Iterable[Records]) -> list[int]:
    return [int(offset) for records in found for offset in records.offsets]


QUESTIONS: dict[str, Callable[[EmbeddedLog], list[int]]] = {
    "read": lambda log: [each.offset for each in bounded(log, TOPIC, ReadOptions())],
    "follow": lambda log: [each.offset for each in islice(follow(log, TOPIC, ReadOptions()), 2)],
    "all": lambda log: offsets(read_all(log, AT)),
    "between": lambda log: offsets(read_between(log, AT, 0, 4)),
    "sample": lambda log: offsets(_sample_records(log, TOPIC, 1)),
}


def expiring(folder: Path, topic: str, values: Iterable[bytes]) -> EmbeddedLog:
    """A log with a topic of which all but the last two records have expired, and are still there."""
    now_ms = [0]
    log = EmbeddedLog(folder, clock=lambda: now_ms[0])
    log.create([TopicSpec(topic, 1, {"retention.ms": "1000"})])
    for value in values:
        now_ms[0] += 600
        log.append([Append(topic=topic, records=[(b"0", value)], partition=0)])
    assert log.bounds([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] == (0, 4)
    return log


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_leaves_out_what_goes_while_it_is_answered(tmp_path: Path, question: str) -> None:
    with closing(expiring(tmp_path, TOPIC, [b"%d" % number for number in range(4)])) as log:
        with retention_strikes(TOPIC):
            assert QUESTIONS[question](log) == [2, 3]
        assert log.bounds([AT])[AT].begin == 2


def test_the_time_of_the_first_record_is_that_of_the_first_that_is_left(tmp_path: Path) -> None:
    with closing(expiring(tmp_path, TOPIC, [b"v"] * 4)) as log, retention_strikes(TOPIC):
        assert first_times(log, {AT: 0}, {AT: 4}) == {AT: 1_800}


def test_the_audit_trail_shows_what_is_left(tmp_path: Path, service: Service) -> None:
    topic = audit.topic_of("s")
    entries = [json.dumps({"at": number, "who": "me", "what": "it", "detail": {}}).encode() for number in range(4)]
    with closing(expiring(tmp_path / "log", topic, entries)) as log, retention_strikes(topic):
        assert [each["at"] for each in audit.entries(log, service.settings, 10)] == [3, 2]


def test_heartbeats_are_read_from_the_first_that_is_left(tmp_path: Path) -> None:
    topic = heartbeat.topic_of("s")
    told = [json.dumps({"host": "h", "pid": number, "since_ms": 0}).encode() for number in range(4)]
    with closing(expiring(tmp_path, topic, told)) as log, retention_strikes(topic):
        found, after = heartbeat.heartbeats(log, "s", 0)
    assert ([each and each.pid for each in found], after) == ([2, 3], 4)


def test_events_that_wait_for_event_time_must_all_be_there(tmp_path: Path) -> None:
    with closing(expiring(tmp_path, TOPIC, [b"v"] * 4)) as log, retention_strikes(TOPIC):
        with pytest.raises(Refused) as refused:
            startup_checks.read_between(log, AT, 0, 4, 10)
        assert refused.value.code == "input-expired"
        assert "longer retention" in refused.value.hint


# ---------------------------------------------------------------- a service


def test_dead_letters_are_those_that_are_left(service: Service) -> None:
    service.config.write_text(service.config.read_text() + "dead_letters: {retention: 7d}\n")
    bad = {"card": "c1", "amount": "much", "country": "US", "ts": START}
    service.process([bad])
    service.clock.pass_ms(2 * DAY)
    service.process([bad])
    with retention_strikes("s-dead-letters"):
        shown = run("dlq", "show", service.config, "--json")
    assert shown.exit_code == 0, shown.output
    assert [each["from"]["offset"] for each in json.loads(shown.stdout)["letters"]] == [1]


def test_status_is_told_where_retention_takes_what_was_not_processed(service: Service) -> None:
    service.produce([purchase("c1", 0, 5)])
    service.clock.pass_ms(2 * DAY)
    service.produce([purchase("c1", 1, 5)])
    with retention_strikes("purchase"):
        shown = run("status", service.config, "--json")
    assert shown.exit_code in (0, 1), shown.output
    assert json.loads(shown.stdout)["lag"] == 2


def test_a_backtest_is_over_what_is_left(service: Service) -> None:
    service.process(many(60))
    service.clock.pass_ms(2 * DAY)
    service.process(many(60, start_s=300))
    with service.log() as log:
        service.clock.pass_ms(6 * DAY)
        with retention_strikes("purchase"):
            found = backtest(service.settings, log, [RULES["countries"]], None, None)
    assert found.tally.totals.records == 60


def test_a_verification_says_what_cannot_be_told(service: Service) -> None:
    service.process(many(60))
    service.clock.pass_ms(2 * DAY)
    service.process(many(60, start_s=300))
    with retention_strikes("purchase"):
        done = run("verify", service.config)
    assert (done.exit_code, "unverifiable: before " in done.stdout) == (3, True), done.output
    assert "retention deleted records while they were read" in done.stdout


def test_a_restore_from_the_source_refuses_with_what_to_do(service: Service) -> None:
    service.process(many(60))
    service.clock.pass_ms(2 * DAY)
    service.process(many(60, start_s=300))
    with retention_strikes("purchase"):
        done = run("restore", service.config, "--from", "source")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "input-expired"), done.output
    assert "cannot be rebuilt from its source" in done.stderr


def test_the_history_of_a_new_rule_is_folded_from_what_is_left(service: Service) -> None:
    """The journal says from where on, so that a rebuild folds the same."""
    service.config.write_text(service.config.read_text() + "tunables: {mark_records: 1}\n")
    service.produce([purchase("c1", 0, 5, "FR"), *tide(10)])
    with service.container() as container:
        service.clock.pass_ms(2 * DAY)
        for second in range(20, 60, 10):  # the task itself needs nothing of what is to go
            service.produce([purchase("c1", second, 5, "IT"), *tide(second)])
            catch_up(container)
        published(service, NEW_COUNTRY, "--warm-from", START - HOUR)
        service.clock.pass_ms(6 * DAY)
        with retention_strikes("purchase"):
            take(container)
        service.produce([purchase("c1", 70, 5, "FR"), purchase("c1", 71, 5, "IT"), *tide(100)])
        catch_up(container)
    found = [alert["at"] - START for alert in alerts(service) if alert["rule"] == "new-country"]
    assert 70_000 in found  # what was before is gone
    assert 71_000 not in found
