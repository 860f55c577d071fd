"""Continuous queries: new rows as they are committed, and results that change."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.log import Append, TopicPartition
from samovar.service.sql.follow import ContinuousQuery
from samovar.service.sql.local import LocalEngine, statements_in
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.output import Printer
from tests.contracts.log_driving import unique
from tests.support.project import ROOT
from tests.support.small_service import Service, make, many, purchase, run


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    made.produce(many(20))
    return made


class Followed:
    """A `samovar sql --follow` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def lines(self, count: int) -> list[Any]:
        return [self.line() for _ in range(count)]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def following(config: Path, query: str, *options: str) -> Iterator[Followed]:
    command = [sys.executable, "-m", "samovar.service.cli", "sql", str(config), query, "--follow", "--json", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, text=True)
    try:
        yield Followed(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_new_rows_of_a_stream_are_shown_as_they_are_committed(service: Service, number: signal.Signals) -> None:
    query = "select card, amount * 2 as twice from purchase where country <> 'XX'"
    with following(service.config, query, "--from", "begin") as followed:
        assert {row["card"] for row in followed.lines(20)} == {f"c{n}" for n in range(7)}
        service.produce([purchase("new", 100, 4), purchase("other", 101, 4, "XX"), purchase("new", 102, 5)])
        assert followed.lines(2) == [{"card": "new", "twice": 8.0}, {"card": "new", "twice": 10.0}]
        assert followed.end(number) == 0


def test_without_a_place_only_what_comes_is_shown(service: Service) -> None:
    with following(service.config, "select card from purchase", "--from", "-1") as followed:
        followed.lines(2)  # the last of each partition: it reads
        service.produce([purchase("new", 100, 4)])
        assert followed.line() == {"card": "new"}


def test_alerts_are_followed_as_rules_find_them(service: Service) -> None:
    with service.container():
        pass
    count = int(json.loads(run("sql", service.config, "select count(*) as n from alerts", "--json").stdout)["n"])
    with following(service.config, "select rule, key['card'] as card from alerts", "--from", "begin") as followed:
        followed.lines(count)
        service.process([purchase("z", 1000, 1), purchase("z", 1005, 1), purchase("z", 1009, 900)])
        service.settle()
        assert {"rule": "testing", "card": "z"} in followed.lines(2)


def test_of_a_result_that_changes_the_changes_are_shown(service: Service) -> None:
    query = "select card, count(*) as n from purchase group by card order by card"
    with following(service.config, query, "--every", "100ms") as followed:
        first = followed.lines(7)
        assert [(row["_change"], row["card"], row["n"]) for row in first[:2]] == [("+", "c0", 3), ("+", "c1", 3)]
        service.produce([purchase("c1", 100, 4), purchase("new", 101, 4)])
        assert followed.lines(3) == [
            {"_change": "-", "card": "c1", "n": 3},
            {"_change": "+", "card": "c1", "n": 4},
            {"_change": "+", "card": "new", "n": 1},
        ]
        assert followed.end() == 0


def test_values_of_later_rows_are_not_cut(service: Service) -> None:
    printer = Printer(io.StringIO())
    with service.log() as log:
        engine = LocalEngine(settings=service.settings, log=log, masks=TableMasks(service.settings, log, sees_all=True))
        (statement,) = statements_in("select repeat(card, 20) as c from purchase", "<query>")
        rounds = iter([False] * 4 + [True] * 100)
        ContinuousQuery(
            engine=engine,
            statement=statement,
            printer=printer,
            start="begin",
            every_s=1.0,
            stopped=lambda _: next(rounds),
        ).run()
    lines = printer.out.getvalue().splitlines()  # type: ignore[attr-defined]  # it is in memory
    assert lines[0] == "c"
    assert {*lines[2:]} <= {f"c{n}" * 20 for n in range(7)}
    assert len(lines) > 2


def test_a_result_that_asks_for_the_time_changes_by_itself(service: Service) -> None:
    with following(service.config, "select now() as t, count(*) from purchase", "--every", "50ms") as followed:
        assert [row["_change"] for row in followed.lines(5)] == ["+", "-", "+", "-", "+"]


def test_a_query_that_cannot_be_followed_says_why(service: Service) -> None:
    def said(query: str, *options: str) -> str:
        done = run("sql", service.config, query, "--follow", *options)
        assert done.exit_code == 2
        return done.stderr

    assert "reads no table" in said("select 1")
    assert "more than 10,000 rows" in said("select * from range(20000), (select 1 from purchase limit 1)")
    assert "evaluated as a whole" in said("select count(*) from purchase", "--from", "begin")
    assert "one query can be followed" in said("select 1; select 2")
    assert "there is no column" in said("select crad from purchase")


def test_what_is_not_committed_is_not_shown(kafka: str, tmp_path: Path) -> None:
    """On Kafka: rows of a transaction come when it is committed, and those of one that was aborted never."""
    from confluent_kafka import Producer  # noqa: PLC0415 - with Kafka only

    from samovar.service.config.loading import load_service  # noqa: PLC0415 - as above
    from samovar.service.topology.logs import opened  # noqa: PLC0415 - as above

    made = make(tmp_path / "k")
    topic = unique("sql")
    text = made.config.read_text().replace(
        "service: s\n", f"service: {unique('s')}\nlog: {{kafka: {{bootstrap: '{kafka}'}}}}\n"
    )
    made.config.write_text(text.replace("{key: card,", f"{{topic: {topic}, key: card,"))
    settings = load_service(made.config)
    event = json.dumps(purchase("c1", 0, 1)).encode()
    produced = run("produce", made.config, "purchase", _file(tmp_path, [purchase("first", 0, 1)]))
    assert produced.exit_code == 0, produced.output
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": unique("t")})
    producer.init_transactions(30)
    with following(made.config, "select card from purchase", "--from", "begin") as followed:
        assert followed.line() == {"card": "first"}
        producer.begin_transaction()
        producer.produce(topic, event.replace(b"c1", b"aborted"), partition=0)
        producer.flush(30)
        producer.abort_transaction(30)
        producer.begin_transaction()
        producer.produce(topic, event.replace(b"c1", b"committed"), partition=0)
        producer.commit_transaction(30)
        assert followed.line() == {"card": "committed"}
        assert followed.end() == 0
    with opened(settings) as log:
        ends = log.bounds([TopicPartition(topic, 0)])
        log.append([Append(topic=topic, records=[(b"c1", event)], partition=0)])
    assert ends
    found = run("sql", made.config, "select count(*) as n, max(card) as card from purchase", "--json")
    assert json.loads(found.stdout) == {"n": 3, "card": "first"}


def _file(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path
