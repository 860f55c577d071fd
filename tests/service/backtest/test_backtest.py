"""`samovar rules backtest`: the live matcher over history, held against what the service found."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.patterns.api import Rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.service.backtest import fold
from samovar.service.backtest.report import html
from samovar.service.backtest.run import Backtest, BacktestOptions, backtest, run_here
from tests.support.small_service import RULES, START, Service, catch_up, make, many, purchase, run, run_apart

PROBES = RULES["testing"]
DAY_MS = 86_400_000
LOWER = PROBES.replace("amount > 200", "amount > 20")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def backtested(
    service: Service, *rules: str, start: int | None = None, stop: int | None = None, **asked: Any
) -> Backtest:
    with service.log() as log:
        return backtest(service.settings, log, rules, start, stop, asked=BacktestOptions(**asked))


def ids_of(service: Service, *rules: str, **asked: Any) -> set[str]:
    """The ids of all that is found."""
    ids: set[str] = set()

    def noting(*arguments: Any) -> Iterator[Any]:
        for found in run_here(*arguments):
            if "+any" not in found.rule:
                ids.add(json.loads(found.line)["id"])
            yield found

    backtested(service, *rules, run=noting, **asked)
    return ids


def alerts_of(service: Service) -> list[dict[str, Any]]:
    done = run("read", service.config, "alerts", "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


# ---------------------------------------------------------------- the same rules


def test_rules_that_did_not_change_find_what_they_found(service: Service) -> None:
    service.process(many(300))
    service.process(many(200, start_s=3_000))
    service.settle()
    assert ids_of(service, *RULES.values()) == {alert["id"] for alert in alerts_of(service)}
    for result in backtested(service, *RULES.values()).rules:
        assert result.current is not None
        assert (result.same, result.new, result.gone) == (result.current, 0, 0)
        assert result.found == result.current > 0


def test_what_was_late_then_is_late_now(service: Service) -> None:
    """Event time had passed with no event, as the journal tells: what came after it did not count."""
    service.produce([purchase("c1", 0, 1), purchase("c1", 5, 1)])
    with service.container() as container:
        for _ in range(3):
            service.clock.pass_ms(300_000)
            catch_up(container)
    service.process([purchase("c1", 20, 900), purchase("c1", 4_000, 1), purchase("c1", 4_010, 1)])
    service.process([purchase("c1", 4_020, 900)])
    service.settle()
    alerts = [alert for alert in alerts_of(service) if alert["rule"] == "testing"]
    assert [alert["at"] for alert in alerts] == [START + 4_020_000]
    assert ids_of(service, PROBES) == {alerts[0]["id"]}
    assert backtested(service, PROBES).tally.totals.late == 1


def test_where_the_service_has_not_come_yet_nothing_is_compared(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 5, 1), purchase("c1", 9, 900), purchase("c1", 60, 5)])
    service.produce([purchase("c1", 100, 1), purchase("c1", 105, 1), purchase("c1", 109, 900)])
    result = backtested(service, PROBES).rules[0]
    assert (result.same, result.new, result.not_compared) == (1, 0, 1)


# ---------------------------------------------------------------- other rules


def test_new_gone_same_and_moved(service: Service) -> None:
    service.process(
        [
            purchase("same", 0, 1), purchase("same", 1, 1), purchase("same", 2, 900),
            purchase("moved", 3, 1), purchase("moved", 4, 1), purchase("moved", 5, 50), purchase("moved", 6, 900),
            purchase("new", 7, 1), purchase("new", 8, 1), purchase("new", 9, 50),
            purchase("gone", 10, 1), purchase("gone", 11, 1), purchase("gone", 400, 900),
        ]
    )  # fmt: skip
    service.settle()
    shorter = LOWER.replace("maxspan=10m", "maxspan=1m")
    result = backtested(service, shorter).rules[0].to_json()
    assert (result["found"], result["current"]) == (3, 3)
    assert (result["same"], result["moved"], result["new"], result["gone"]) == (2, 1, 1, 1)
    (new,), (gone,) = result["examples"]["new"], result["examples"]["gone"]
    assert (new["match"]["key"], gone["match"]["key"]) == ({"card": "new"}, {"card": "gone"})
    assert [(each["step"], each["value"]["amount"]) for each in new["events"]] == [
        ("probe", 1),
        ("probe", 1),
        ("big", 50),
    ]
    assert result["days"] == [{"day": "2026-01-05", "found": 3, "current": 3}]


def test_a_rule_that_the_service_does_not_have_is_only_counted(service: Service) -> None:
    service.process(many(100))
    result = backtested(service, LOWER.replace("rule: testing", "rule: fresh")).rules[0].to_json()
    assert result["found"] > 0
    assert (result["current"], result["same"], result["not_compared"]) == (None, None, result["found"])


def test_only_what_falls_between_the_two_moments_counts_and_earlier_events_count_towards_it(service: Service) -> None:
    service.process(
        [
            purchase("c1", 0, 1), purchase("c1", 1, 1), purchase("c1", 30, 900),
            purchase("c2", 50, 1), purchase("c2", 55, 1), purchase("c2", 65, 900),
            purchase("c3", 70, 1), purchase("c3", 75, 1), purchase("c3", 120, 900),
        ]
    )  # fmt: skip
    service.settle()
    found = backtested(service, PROBES, start=START + 60_000, stop=START + 120_000)
    result = found.rules[0].to_json()
    assert (result["found"], result["current"], result["same"]) == (1, 1, 1)


def test_a_key_that_is_in_several_partitions_is_followed_through_all(service: Service) -> None:
    """A rule by country, over topics that are by card: the order is that of event time, whatever the partition."""
    events = many(300)
    service.produce(events)
    text = "rule: spread\nmatch: |\n  aggregate by country over 2m [purchase where true] having distinct(card) >= 7\n"
    found = backtested(service, text, PROBES, examples=100)
    assert found.tally.totals.records == 300  # though two runs read them
    rule = load_text(text).rule
    assert rule is not None
    wanted = Rules([rule]).run([{"type": "purchase", **event} for event in events])
    matches = [each.match for each in found.rules[0].examples["found"]]
    assert [(each["key"], each["at"]) for each in matches] == [(each.key, each.at) for each in wanted]
    assert matches


def test_reading_begins_as_far_back_as_the_rules_look(tmp_path: Path) -> None:
    """Where records come as events happen, what is long before `--from` is not read at all."""
    service = make(tmp_path / "s")
    service.clock.now_ms = START
    for day, amount in ((0, 1), (1, 1), (4, 30), (6, 900)):
        service.clock.now_ms = START + day * DAY_MS
        service.produce([purchase("c1", day * 86_400, amount)])
    slow = PROBES.replace("maxspan=10m", "maxspan=6d")
    found = backtested(service, slow, start=START + 6 * DAY_MS - 1)
    assert found.rules[0].found == 1
    assert found.tally.totals.records == 4
    quick = backtested(service, PROBES.replace("maxspan=10m", "maxspan=1d"), start=START + 6 * DAY_MS - 1)
    assert quick.tally.totals.records == 2  # of the last three days


def test_what_overlap_any_would_find_more(service: Service) -> None:
    """The newest start stands in the way of the one that fits."""
    service.process([purchase("c1", 0, 5, "FR"), purchase("c1", 10, 6, "US"), purchase("c1", 20, 900, "FR")])
    text = """
rule: there-and-back
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 10] as small
    [purchase where amount > 100 and country == small.country] as big
"""
    result = backtested(service, text).rules[0].to_json()
    assert (result["found"], result["overlap_any"]["more"]) == (0, 1)
    assert result["examples"]["overlap_any"][0]["match"]["key"] == {"card": "c1"}
    assert backtested(service, text, overlap_any=False).rules[0].overlap_any is None


@pytest.mark.parametrize("whole", [True, False], ids=["threads", "parts"])
def test_threads_and_parts_change_nothing(service: Service, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules by the topics' key and by others, which run on all partitions: as a live service found them."""
    by_country = "rule: spread\nmatch: |\n  aggregate by country over 2m [purchase where true] having count() >= 3\n"
    service.produce(many(400))
    monkeypatch.setenv("SAMOVAR_TUNABLES__REPLAY_RECORDS", "50")

    def in_threads(settings: Any, log: Any, one: Any, tally: Any, on_events: Any) -> Iterator[Any]:
        for each in [one] if whole else one.parts():
            yield from fold.run_fold(settings, log, each, tally, on_events, workers=3)

    rules = [*RULES.values(), by_country]
    first, second = (backtested(service, *rules, run=run).to_json() for run in (fold.run_fold, in_threads))
    for each in (first, second):
        del each["seconds"], each["events_per_s"]
    assert first == second
    assert all(rule["found"] > 0 for rule in first["rules"])


def test_states_beyond_memory_change_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.produce(many(900, cards=61))
    there = ids_of(service, *RULES.values())
    monkeypatch.setattr(fold, "LOOK_EVERY", 1)
    monkeypatch.setenv("SAMOVAR_TUNABLES__REPLAY_RECORDS", "50")
    assert ids_of(service, *RULES.values(), state_bytes=1) == there
    assert there


def test_dead_letters_are_counted_and_passed_over(service: Service) -> None:
    service.process(many(60))
    with service.log() as log:
        log.append([Append(topic="purchase", records=[(b"c1", b"no json"), (b"c1", b'{"card": "c1"}')])])
    found = backtested(service, PROBES)
    assert found.tally.totals.dead == 2
    assert found.rules[0].found > 0


def test_shared_lists_are_those_of_today(service: Service) -> None:
    """A list that was changed since the rule was written is what the live rule has, and the backtest."""
    rule = service.config.parent / "rules" / "risky.yml"
    condition = "[purchase where country in $risky] as p"
    text = f"rule: risky\nlists: {{risky: [FR]}}\nmatch: |\n  sequence by card with maxspan=0ms {condition}\n"
    rule.write_text(text)
    service.process(many(30))
    before = backtested(service, text).rules[0]
    assert run("lists", "add", service.config, "risky", "DE", "--yes").exit_code == 0
    after = backtested(service, text).rules[0]
    assert (after.version != before.version, after.found) == (
        True,
        sum(each["country"] in ("FR", "DE") for each in many(30)),
    )


# ---------------------------------------------------------------- labels


def label(service: Service, labels: Sequence[tuple[str, str]]) -> None:
    with service.log() as log:
        log.create([TopicSpec("s-labels", 1, {"cleanup.policy": "compact"})])
        told = {"rule": "testing", "key": "c", "by": "ann", "at": START, "note": ""}
        pairs = [
            (alert.encode(), json.dumps({"alert": alert, "label": each, **told}).encode()) for alert, each in labels
        ]
        log.append([Append(topic="s-labels", records=[*pairs, (b"bad", b"no label at all")])])


def test_precision_and_recall_by_labels(service: Service) -> None:
    cards = [f"c{n}" for n in range(6)]
    for place, card in enumerate(cards):
        last = 900 if place < 4 else 250
        service.produce([purchase(card, place, 1), purchase(card, place + 1, 1), purchase(card, place + 2, last)])
    service.settle()
    alerts = {alert["key"]["card"]: alert["id"] for alert in alerts_of(service) if alert["rule"] == "testing"}
    assert backtested(service, PROBES).rules[0].labels is None
    said = ["confirmed", "false_alarm", "confirmed", "open", "confirmed", "false_alarm"]
    label(
        service,
        [(alerts["c0"], "false_alarm"), *((alerts[card], each) for card, each in zip(cards, said, strict=True))],
    )
    higher = PROBES.replace("amount > 200", "amount > 500")
    marks = backtested(service, higher).rules[0].to_json()["labels"]
    assert (marks["confirmed"], marks["confirmed_kept"], marks["false_alarms_kept"]) == (3, 2, 1)
    assert marks["precision"] == pytest.approx(2 / 3)
    assert marks["recall"] == pytest.approx(2 / 3)
    assert marks["precision_before"] == pytest.approx(3 / 5)


# ---------------------------------------------------------------- the command


def test_the_command_as_json_and_as_a_report(service: Service, tmp_path: Path) -> None:
    service.process(many(200))
    service.settle()
    rule, page = tmp_path / "lower.yml", tmp_path / "report.html"
    rule.write_text(LOWER.replace("rule: testing", "rule: testing\ntitle: <script>alert(1)</script>"))
    done = run("rules", "backtest", rule, service.config, "--json", "--html", page)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["events"] == 200
    (result,) = found["rules"]
    assert result["new"] > 0
    text = page.read_text()
    assert f"{result['new']:,} new" in text
    assert "<svg" in text
    assert "&lt;script&gt;" in text
    assert not any(word in text for word in ("<script", "http://", "https://", "url(", "@import", " src="))


def test_a_report_escapes_what_events_say(service: Service) -> None:
    service.produce([purchase("<b>c1</b>", 0, 1), purchase("<b>c1</b>", 5, 1), purchase("<b>c1</b>", 9, 900)])
    page = html(backtested(service, PROBES.replace("rule: testing", "rule: fresh")))
    assert page.count("&lt;b&gt;c1&lt;/b&gt;") >= 4  # the key, and the three events
    assert "<b>c1" not in page


def test_the_command_in_words(service: Service) -> None:
    service.process(many(200))
    service.settle()
    rules = service.config.parent / "rules"
    done = run("rules", "backtest", rules, service.config, "--from", "2026-01-05", "--to", "2026-01-06T00:00Z")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("s, 2026-01-05 00:00:00 to 2026-01-06 00:00:00 (event time, UTC)\n200 events")
    assert "0 new, 0 gone" in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--from", "2026-01-06", "--to", "2026-01-05"], 2, "backtest-times: it would begin after it ends"),
        (["--from", "yesterday"], 2, "not an ISO 8601 time"),
        (["--engine", "flink"], 2, "Invalid value for --engine"),
        (["--html", "/nowhere/at/all.html"], 2, "unwritable: cannot write /nowhere/at/all.html"),
    ],
)
def test_wrong_usage(service: Service, options: list[str], code: int, said: str) -> None:
    service.produce(many(10))
    done = run("rules", "backtest", service.config.parent / "rules", service.config, *options)
    assert done.exit_code == code
    assert said in done.stderr


def test_a_rule_with_errors_is_shown_with_its_line(service: Service, tmp_path: Path) -> None:
    service.produce(many(10))
    bad = tmp_path / "bad.yml"
    bad.write_text(PROBES.replace("amount > 200", "amonut > 200"))
    done = run("rules", "backtest", bad, service.config)
    assert done.exit_code == 1
    assert "did you mean `amount`?" in done.stderr
    assert f"{bad}:6:" in done.stderr


def test_without_history_it_says_so(service: Service) -> None:
    done = run("rules", "backtest", service.config.parent / "rules", service.config)
    assert done.exit_code == 2
    assert done.stderr.startswith("backtest-no-history: the topic purchase does not exist")


def test_two_rules_of_one_name_are_refused(service: Service, tmp_path: Path) -> None:
    service.produce(many(10))
    with pytest.raises(Exception, match="two of the rules are called testing"):
        backtested(service, PROBES, LOWER)


def test_progress_goes_up_to_all_records(service: Service) -> None:
    service.produce(many(100))
    seen: list[tuple[int, int]] = []
    with service.log() as log:
        backtest(service.settings, log, [PROBES], None, None, lambda done, total: seen.append((done, total)))
        ends = log.bounds([TopicPartition("purchase", 0), TopicPartition("purchase", 1)]).values()
    assert seen[-1] == (100, 100) == (sum(each.end for each in ends), 100)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_the_page_of_a_rule_that_found_nothing(service: Service) -> None:
    service.process(many(20))
    page = html(backtested(service, PROBES.replace("amount > 200", "amount > 1e9")))
    assert "It finds 0 alerts" in page


def test_on_kafka_it_finds_the_same_as_on_the_embedded_log(service: Service, kafka: str, tmp_path: Path) -> None:
    name = f"backtest-{uuid.uuid4().hex[:8]}"
    there = make(tmp_path / "k")
    text = there.config.read_text().replace("service: s", f"service: {name}")
    there.config.write_text(
        text.replace("{key:", f"{{topic: {name}, key:") + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n'
    )
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in many(300)))
    assert run("produce", there.config, "purchase", events).exit_code == 0
    ran = run_apart("run", there.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    service.process(many(300))
    service.settle()
    here = {
        each.rule.id: each.to_json()
        for each in backtested(service, *RULES.values(), LOWER.replace("g\n", "g-low\n", 1)).rules
    }
    rules = [there.config.parent / "rules", tmp_path / "low.yml"]
    rules[1].write_text(LOWER.replace("g\n", "g-low\n", 1))
    done = run("rules", "backtest", *rules, there.config, "--json")
    assert done.exit_code == 0, done.output
    for result in json.loads(done.stdout)["rules"]:
        assert result["found"] == here[result["rule"]]["found"] > 0
        if result["rule"] != "testing-low":
            assert (result["new"], result["gone"]) == (0, 0)
            assert result["current"] == result["same"] > 0
