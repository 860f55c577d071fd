"""`samovar dlq`: dead letters looked at, and put back exactly once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats import redrives
from samovar.changelog.formats.redrives import DeadLetterPlace, carried
from samovar.changelog.log import Append, Topic, TopicPartition
from samovar.service.recovery import dead_letters
from tests.support.small_service import Service, make, many, purchase, run, run_apart

WRONG = {"card": "c1", "amount": "a lot", "country": "US", "ts": 1_767_600_000_000}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def bad(count: int) -> list[dict[str, Any]]:
    return [{**WRONG, "card": f"c{number % 5}", "number": number} for number in range(count)]


def produce_raw(service: Service, *pairs: tuple[bytes | None, bytes | None], partition: int | None = None) -> None:
    with service.log() as log:
        log.append([Append(topic="purchase", records=pairs, partition=partition)])


def show(service: Service, *options: object) -> dict[str, Any]:
    done = run("dlq", "show", service.config, "--json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def redrive(service: Service, *options: object) -> dict[str, Any]:
    done = run("dlq", "redrive", service.config, "--json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def inputs(service: Service, topic: str = "purchase") -> list[dict[str, Any]]:
    done = run("read", service.config, topic, "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- show


def test_letters_show_why_where_and_what(service: Service) -> None:
    service.process([*many(10), WRONG])
    produce_raw(service, (b"c1", b"not json"), (b"c1", b"\xff\x00"))
    service.process([])
    found = show(service)
    letter = next(each for each in found["letters"] if each["reason"] == "WRONG_TYPE")
    assert letter["message"] == "`amount` should be double, and is text"
    assert letter["from"]["topic"] == "purchase"
    assert letter["from"]["partition"] == service.partition("c1")
    assert (letter["key"], letter["value"], letter["stream"]) == ("c1", WRONG, "purchase")
    assert {each["reason"]: each["letters"] for each in found["summary"]} == {
        "WRONG_TYPE": 1,
        "NOT_JSON": 1,
        "NOT_UTF8": 1,
    }
    text = run("dlq", "show", service.config).stdout
    assert "base64:/wA=" in text
    assert "3 dead letters" in text


def test_letters_of_one_reason_from_a_place_and_few_of_them(service: Service) -> None:
    service.process(bad(7))
    produce_raw(service, (b"c1", b"not json"))
    service.process([])
    assert [each["reason"] for each in show(service, "--reason", "NOT_JSON")["letters"]] == ["NOT_JSON"]
    some = show(service, "--limit", 2)
    assert (len(some["letters"]), some["total"]) == (2, 8)
    assert "... and 6 more" in run("dlq", "show", service.config, "--limit", 2).stdout
    assert show(service, "--from", "end")["total"] == 0


def test_no_letters_and_no_topic(service: Service) -> None:
    done = run("dlq", "show", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "topic-missing")
    service.process(many(5))
    assert run("dlq", "show", service.config).stdout == "no dead letters\n"


# ---------------------------------------------------------------- redrive


def test_a_letter_goes_back_once_with_its_key_bytes_and_partition(service: Service) -> None:
    service.config.write_text(service.config.read_text().replace("slack: 2s", "slack: 2s, repartition: false"))
    service.process([purchase("c2", 0, 3)])
    produce_raw(service, (b"c9", b'{"card": "c9",  "amount": "x", "ts": 1}'), partition=1 - service.partition("c9"))
    service.process([])
    before = inputs(service)
    assert redrive(service, "--dry-run") == {
        "plan": {"letters": 1, "to": {"purchase": 1}, "left_out": {}, "died_again": 0},
        "dry_run": True,
        "redriven": 0,
    }
    assert inputs(service) == before
    assert redrive(service)["redriven"] == 1
    (back,) = [each for each in inputs(service) if each not in before]
    (first,) = [each for each in before if each["key"] == "c9"]
    assert (back["key"], back["value"], back["partition"]) == (first["key"], first["value"], first["partition"])
    (letter,) = show(service)["letters"]
    assert back["headers"] == {
        "samovar.redriven.from": f"s-dead-letters/{letter['letter']}",
        "samovar.redriven.attempt": "1",
    }
    assert letter["redriven"]
    assert redrive(service) == {
        "plan": {"letters": 0, "to": {}, "left_out": {"redriven before": 1}, "died_again": 0},
        "dry_run": False,
        "redriven": 0,
    }
    assert len(inputs(service)) == len(before) + 1


def test_one_that_dies_again_tells_how_often_it_was_put_back(service: Service) -> None:
    service.process([WRONG])
    for attempt in range(1, 4):
        assert redrive(service)["redriven"] == 1
        service.process([])
        letters = show(service)["letters"]
        assert sorted(each["attempts"] for each in letters) == list(range(attempt + 1))
    assert "died again after 3 redrives" in run("dlq", "show", service.config).stdout


def test_only_what_is_asked_for_goes_back(service: Service) -> None:
    service.process(bad(6))
    produce_raw(service, (b"c1", b"not json"))
    service.process([])
    wanted = show(service, "--reason", "WRONG_TYPE")["letters"][2]
    assert redrive(service, "--offset", wanted["letter"])["redriven"] == 1
    assert [each["letter"] for each in show(service)["letters"] if each["redriven"]] == [wanted["letter"]]
    assert redrive(service, "--reason", "NOT_JSON")["redriven"] == 1
    assert redrive(service, "--reason", "NOT_JSON")["redriven"] == 0
    assert redrive(service)["redriven"] == 5
    assert run("dlq", "redrive", service.config, "--offset", "3").exit_code == 2


def test_repaired_letters_are_processed(service: Service) -> None:
    """The reason to redrive: what was wrong with the service file was put right."""
    service.config.write_text(service.config.read_text().replace("country: string", "country: double"))
    service.process([purchase("c1", 0, 1), purchase("c1", 1, 1), purchase("c1", 2, 900)])
    assert show(service)["total"] == 3
    service.config.write_text(service.config.read_text().replace("country: double", "country: string"))
    redrive(service)
    service.process([])
    service.settle()
    assert [each["value"]["rule"] for each in inputs(service, "alerts")] == ["testing", "unusual"]


def test_what_cannot_go_back_stays_and_is_said(service: Service) -> None:
    service.process([WRONG])
    headers = [
        (("__streams.errors.exception", b"TOO_LONG"), ("samovar.cut.bytes", b"9000000")),
        (("__streams.errors.exception", b"TASK_FAILED"),),
        (
            ("__streams.errors.exception", b"NOT_JSON"),
            ("__streams.errors.topic", b"old"),
            ("__streams.errors.partition", b"0"),
            ("__streams.errors.offset", b"1"),
        ),
        *(
            (
                ("__streams.errors.exception", b"WRONG_TYPE"),
                ("__streams.errors.topic", b"purchase"),
                ("__streams.errors.partition", b"0"),
                ("__streams.errors.offset", b"1"),
                ("samovar.stage", stage),
            )
            for stage in (b"by-user", b"by-place")
        ),
    ]
    with service.log() as log:
        log.append([Append(topic="s-dead-letters", records=[(b"k", b"v")] * 5, partition=0, headers=headers)])
    found = redrive(service, "--dry-run")["plan"]
    assert found["letters"] == 1
    assert sorted(found["left_out"].values()) == [1, 1, 1, 2]
    done = run("dlq", "redrive", service.config, "--dry-run").stdout
    assert "1 left out: cut, so that the whole message is no longer there" in done
    assert "2 left out: only a later stage put it aside, and others would have it twice" in done
    assert "1 left out: the topic old is not a stream's; `--to STREAM` names another" in done


def test_to_another_stream_it_goes_by_its_key(service: Service) -> None:
    service.config.write_text(service.config.read_text() + "  other: {key: card, partitions: 2}\n")
    service.process(bad(5))
    assert redrive(service, "--to", "other")["plan"]["to"] == {"other": 5}
    assert {each["key"]: each["partition"] for each in inputs(service, "other")} == {
        f"c{number}": service.partition(f"c{number}") for number in range(5)
    }
    done = run("dlq", "redrive", service.config, "--to", "oter")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "unknown-stream")


# ---------------------------------------------------------------- never twice


@pytest.mark.parametrize("point", ["commit.before:2", "commit.after:2"])
def test_killed_in_the_middle_and_run_again_sends_none_twice(service: Service, point: str) -> None:
    service.process(bad(500))  # three transactions
    before = len(inputs(service))
    killed = run_apart("dlq", "redrive", service.config, SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    sent = len(inputs(service)) - before
    assert sent == (400 if point.startswith("commit.after") else 200)
    assert redrive(service)["redriven"] == 500 - sent
    again = [each for each in inputs(service) if each["headers"]]
    assert Counter(each["value"]["number"] for each in again) == Counter(range(500))


def test_two_at_once_are_refused(service: Service) -> None:
    service.process([WRONG])
    with service.log() as log, dead_letters.alone(service.settings, log):
        done = run("dlq", "redrive", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "slot-taken")


def test_letters_of_a_topic_made_again_are_others(service: Service) -> None:
    service.process([WRONG])
    redrive(service)
    with service.log() as log:
        log.delete(["s-dead-letters"])
    service.process([{**WRONG, "again": True}])
    found = show(service)["letters"]
    assert len(found) == 2  # the one that was put back died again
    assert not any(each["redriven"] for each in found)


def test_a_transaction_is_neither_too_many_nor_too_large(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE_BYTES", 250)
    service.process(bad(10))
    redrive(service)
    with service.log() as log:
        at = TopicPartition("s-redriven", 0)
        assert log.bounds([at])[at].end == 10


def test_a_topics_id_may_have_slashes(service: Service) -> None:
    """Kafka's ids are base64."""
    letters = Topic(name="s-dead-letters", partitions=2, settings={}, id="a/b+c/d==")
    with service.log() as log:
        log.create([redrives.spec_of("s")])
        marks = [redrives.mark(letters, DeadLetterPlace(1, 7), "purchase", 1, 0)]
        log.append([Append(topic=redrives.topic_of("s"), records=marks, partition=0)])
        assert redrives.marked(log, "s", letters) == {DeadLetterPlace(1, 7)}
        assert redrives.marked(log, "s", Topic(name="s-dead-letters", partitions=2, settings={}, id="d==")) == set()


def test_headers_that_a_letter_keeps() -> None:
    own = ("samovar.redriven.attempt", b"2")
    assert carried((("x", b"1"), own)) == (own,)
    assert carried(()) == ()
    assert str(DeadLetterPlace(3, 17)) == "3/17"
