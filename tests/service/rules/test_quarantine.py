"""A rule that takes too much is taken out, and the service goes on: the other rules' alerts all come, every task takes
the quarantine, and replay, rebuild and verify repeat it without a limit of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import Position
from samovar.changelog.formats.rules_topic import read_changes
from samovar.common.errors import LogUnavailable
from samovar.service.runtime import running
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.metrics import active_rules
from samovar.tasks.runtime.stream_task import LIVE_BUDGET, StreamTask
from tests.service.rules.test_rule_changes import alerts, equal, journal, published, take
from tests.support.project import ROOT
from tests.support.small_service import Service, catch_up, make, run

BOOM = """
rule: boom
match: |
  sequence by card with maxspan=1h, overlap=any, skip=none
    [purchase where amount > 0] as x
    [purchase where amount > 0] as y
    [purchase where amount > 0] as z
message: "{x.blob}{y.blob}{z.blob}{x.blob}{y.blob}{z.blob}{x.blob}{y.blob}{z.blob}"
"""
CALM = """
rule: calm
match: |
  sequence by card with maxspan=0ms
    [purchase where amount > 0] as p
"""
START = 1_767_600_000_000


@pytest.fixture
def service(tmp_path: Path) -> Service:
    service = make(tmp_path / "s")
    rules = service.config.parent / "rules"
    for file in rules.iterdir():
        file.unlink()
    (rules / "boom.yml").write_text(BOOM)
    (rules / "calm.yml").write_text(CALM)
    text = service.config.read_text().replace("country: string", "country: string, blob: string")
    service.config.write_text(text)
    return service


def budget(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """What a step of a container made from here on may take."""
    own = running.config_of
    monkeypatch.setattr(
        running, "config_of", lambda settings: replace(own(settings), budget=replace(LIVE_BUDGET, **limits))
    )


def bought(card: str, count: int, start: int = 0, blob: str = "b") -> list[dict[str, Any]]:
    return [{"card": card, "amount": 1, "ts": START + 1_000 * (start + n), "blob": blob} for n in range(count)]


def mixed(service: Service, count: int, start: int = 0) -> list[dict[str, Any]]:
    """Two cards, one of each partition, in turns."""
    cards = [next(f"c{n}" for n in range(99) if service.partition(f"c{n}") == each) for each in (0, 1)]
    pairs = zip(bought(cards[0], count, start), bought(cards[1], count, start), strict=True)
    return [event for pair in pairs for event in pair]


def calm(service: Service) -> list[int]:
    return [alert["at"] for alert in alerts(service) if alert["rule"] == "calm"]


def quarantines(service: Service) -> list[tuple[int, dict[str, Any]]]:
    found = [(number, entry) for number in (0, 1) for entry in journal(service, number)]
    return [(number, entry.facts["quarantine"]) for number, entry in found if "quarantine" in entry.facts]


def changes(service: Service) -> list[tuple[str, list[tuple[str, str]]]]:
    with service.log() as log:
        read = read_changes(log, "s")
    return [(each.act, [(rule.name, rule.status) for rule in each.rules]) for each in read]


def settle(service: Service, container: Container, times: int = 3) -> None:
    for _ in range(times):
        service.clock.pass_ms(6_000)
        catch_up(container)


# ---------------------------------------------------------------- too much of one event


def test_a_rule_over_the_budget_is_taken_out_and_all_alerts_of_the_others_come(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(monkeypatch, event_bytes=100_000)
    events = mixed(service, 60)
    service.produce(events)
    with service.container() as container:
        settle(service, container)
        assert [each["rule"] for _, each in quarantines(service)] == ["boom", "boom"]
        assert {number for number, _ in quarantines(service)} == {0, 1}
    assert sorted(calm(service)) == sorted(event["ts"] for event in events)
    equal(service)


def test_the_batch_is_run_again_from_the_position_before_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found in the batch before it went over the budget was never written."""
    budget(monkeypatch, event_bytes=100_000)
    first, then = bought("c1", 5), bought("c1", 60, start=5)
    number = service.partition("c1")
    service.produce(first)
    with service.container() as container:
        settle(service, container)
        before = [alert["id"] for alert in alerts(service) if alert["rule"] == "boom"]
        service.produce(then)
        catch_up(container)
        settle(service, container)
        entry = next(each for each in journal(service, number) if "quarantine" in each.facts)
        assert entry.inputs == {"purchase": 5}
        assert entry.facts["quarantine"]["key"] == ["c1"]
    assert [alert["id"] for alert in alerts(service) if alert["rule"] == "boom"] == before
    assert len(before) == 10
    equal(service)


def test_every_task_takes_the_quarantine_from_the_rules_topic(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(monkeypatch, event_bytes=100_000)
    number = service.partition("c1")
    service.produce([*bought("c1", 60), *mixed(service, 2, start=90)])
    with service.container() as container:
        settle(service, container)
        assert [each for each, _ in quarantines(service)] == [number]
        take(container)
        assert changes(service) == [
            ("seed", [("boom", "live"), ("calm", "live")]),
            ("quarantine", [("boom", "quarantined")]),
        ]
        for task in container.tasks.values():
            assert [each.rule.id for each in task.processor.plan.program.rules] == ["calm"]
        assert [(each.rule, each.status) for each in active_rules(container.tasks.values())] == [
            ("boom", "quarantined"),
            ("calm", "live"),
        ]
        # Another look, and another change, do not bring it back.
        published(service, CALM.replace("rule: calm", "rule: other"))
        take(container)
        service.produce(bought("c1", 30, start=60))
        settle(service, container)
        assert "boom" not in {alert["rule"] for alert in alerts(service)[-30:]}
    equal(service)


def test_a_task_in_quarantine_is_not_given_the_rule_back_before_others_know(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(service, CALM.replace("rule: calm", "rule: other"))  # from here on there is a rulebook
    budget(monkeypatch, event_bytes=100_000)
    service.produce(bought("c1", 60))
    with service.container() as container:
        settle(service, container)
        assert len(quarantines(service)) == 1
        for task in container.tasks.values():
            assert not task.migration_due
    with service.container() as container:  # the rules topic does not have it: nobody looked
        settle(service, container)
        service.produce(bought("c1", 5, start=60))
        settle(service, container)
        assert len(quarantines(service)) == 1
    equal(service)


def test_a_rule_that_is_enabled_again_is_at_work_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    budget(monkeypatch, event_bytes=100_000)
    service.produce(bought("c1", 60))
    with service.container() as container:
        settle(service, container)
        take(container)
        shown = run("rules", "history", service.config)
        assert "quarantined" in shown.output, shown.output
        done = run("rules", "enable", service.config, "boom", "--yes")
        assert done.exit_code == 0, done.output
        take(container)
        service.produce(bought("c2", 5, start=7_200))  # it begins with no history, and alerts when it has some
        settle(service, container)
        found = [alert for alert in alerts(service) if alert["rule"] == "boom" and alert["key"]["card"] == "c2"]
        assert len(found) == 10
        # And out again, when it goes over the budget again.
        service.produce(bought("c3", 60, start=7_300))
        settle(service, container)
        take(container)
        assert [act for act, _ in changes(service)] == ["seed", "quarantine", "enable", "quarantine"]
    equal(service)


def test_status_tells_which_rules_are_in_quarantine(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    budget(monkeypatch, event_bytes=100_000)
    service.produce(bought("c1", 60))
    with service.container() as container:
        settle(service, container)
        take(container)
    shown = run("status", service.config)
    assert "rule boom number 2" in shown.output, shown.output
    assert "quarantined" in shown.output


def test_a_restart_and_a_restore_from_the_source_go_on_without_the_rule(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(monkeypatch, event_bytes=100_000)
    service.produce(bought("c1", 60))
    with service.container() as container:
        settle(service, container)
        take(container)
    digests = service.digests()
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == digests
    service.produce(bought("c1", 10, start=600))
    with service.container() as container:
        settle(service, container)
    assert len(quarantines(service)) == 1
    assert len(calm(service)) == 70
    equal(service)


# ---------------------------------------------------------------- too much of one batch


def test_a_batch_that_finds_too_much_is_taken_in_pieces_and_no_rule_is_at_fault(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = mixed(service, 40)
    service.produce(events)
    budget(monkeypatch, step_bytes=300_000)
    with service.container() as container:
        settle(service, container, times=9)
        assert container.status().counts.commits > 10
    assert not quarantines(service)
    found = [alert["id"] for alert in alerts(service)]
    assert len(found) == len(set(found)) == 2 * (40 * 39 * 38 // 6 + 40)
    equal(service)


def test_a_log_that_goes_away_while_a_batch_is_to_be_taken_again_ends_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited for event time is read again for it. A container that could not starts again, and counts on."""
    budget(monkeypatch, step_bytes=300_000)
    begin, gone = StreamTask._begin, list[StreamTask]()

    def begin_later(task: StreamTask, position: Position | None, standing: Plan | None = None) -> None:
        if standing is not None and task.counts.commits and not gone:
            gone.append(task)
            raise LogUnavailable("all brokers are down")
        begin(task, position, standing)

    monkeypatch.setattr(StreamTask, "_begin", begin_later)
    with service.container() as container:
        service.produce(mixed(service, 40))
        for _ in range(1_000):
            container.step()
            if gone:
                break
        assert gone, "no batch was taken again"
        assert container.status().counts.commits
        settle(service, container, times=9)
    assert not quarantines(service)
    assert len(alerts(service)) == 2 * (40 * 39 * 38 // 6 + 40)
    equal(service)


@pytest.mark.parametrize("step_bytes", [1, 5_000])
def test_one_record_that_finds_too_much_is_taken_all_the_same(
    service: Service, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    events = mixed(service, 12)
    service.produce(events)
    budget(monkeypatch, step_bytes=step_bytes)
    with service.container() as container:
        settle(service, container, times=9)
    assert not quarantines(service)
    assert len(alerts(service)) == 2 * (220 + 12)
    equal(service)


# ---------------------------------------------------------------- too much of a rule's history


def boom_comes_later(service: Service) -> None:
    """The service runs without the rule, which is then published with all of its history."""
    (service.config.parent / "rules" / "boom.yml").unlink()


def test_a_rule_whose_history_goes_over_the_budget_comes_in_quarantined(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    boom_comes_later(service)
    events, after = mixed(service, 60), mixed(service, 5, start=600)
    service.produce(events)
    budget(monkeypatch, event_bytes=100_000)
    with service.container() as container:
        settle(service, container)
        other = CALM.replace("rule: calm", "rule: other")
        published(service, other, "--warm-from", START - 1, name="other.yml")
        published(service, BOOM, "--warm-from", START - 1)
        take(container)
        take(container)
        assert {each["rule"] for _, each in quarantines(service)} == {"boom"}
        assert changes(service)[-1] == ("quarantine", [("boom", "quarantined")])
        for task in container.tasks.values():
            assert [each.rule.id for each in task.processor.plan.program.rules] == ["calm", "other"]
        service.produce(after)
        settle(service, container)
    assert sorted(calm(service)) == sorted(event["ts"] for event in [*events, *after])
    assert {alert["rule"] for alert in alerts(service)} == {"calm", "other"}
    digests = service.digests()
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == digests
    equal(service)


@pytest.mark.parametrize("step_bytes", [1, 5_000, 300_000])
def test_a_history_that_finds_much_is_folded_in_pieces(
    service: Service, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    boom_comes_later(service)
    service.produce(mixed(service, 20))
    budget(monkeypatch, step_bytes=step_bytes)
    with service.container() as container:
        settle(service, container)
        published(service, BOOM, "--warm-from", START - 1)
        take(container)
        assert not quarantines(service)
        service.produce(mixed(service, 1, start=600))
        settle(service, container, times=9)
    found = [alert for alert in alerts(service) if alert["rule"] == "boom" and alert["at"] == START + 600_000]
    assert len(found) == 2 * (20 * 19 // 2)  # with any two of before
    equal(service)


# ---------------------------------------------------------------- a process that ends again and again

LIMITED = """
import sys
from dataclasses import replace
from samovar.service.runtime import running
from samovar.service.cli.main import main
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.stream_task import LIVE_BUDGET
name, value = sys.argv.pop().split("=")
own, limits = running.config_of, {name: int(value)}
running.config_of = lambda settings: replace(own(settings), budget=replace(LIVE_BUDGET, **limits))
main()
"""
MARKS, PASSES = "event_bytes=800000", "event_bytes=80000000"  # a mark is left, and nothing abandoned; no mark


def begin(service: Service) -> None:
    """The rules are at work, and the next commit is of events."""
    service.produce([])
    assert run_limited(service, PASSES) == 0
    service.produce(bought("c1", 30))


def run_limited(service: Service, limit: str, **environment: str) -> int:
    command = [sys.executable, "-c", LIMITED, "run", str(service.config), "--until-caught-up", limit]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False, timeout=60
    )
    return done.returncode


def test_a_process_that_ends_three_times_over_a_soft_limit_comes_back_without_the_rule(service: Service) -> None:
    begin(service)
    for _ in range(3):
        assert run_limited(service, MARKS, SAMOVAR_KILL="commit.before:1") == -signal.SIGKILL
    assert not quarantines(service)
    assert run_limited(service, MARKS) == 0
    assert [each["rule"] for _, each in quarantines(service)] == ["boom"]
    assert changes(service)[-1] == ("quarantine", [("boom", "quarantined")])
    assert not list(service.state.glob("*/over-limit*"))
    equal(service)


def test_a_process_that_ends_three_times_in_a_rules_history_comes_back_without_the_rule(service: Service) -> None:
    boom_comes_later(service)
    card = next(f"c{n}" for n in range(99) if service.partition(f"c{n}") == 0)  # of the task that is first to change
    service.produce(bought(card, 30))
    assert run_limited(service, PASSES) == 0
    published(service, BOOM, "--warm-from", START - 1)
    for _ in range(3):
        assert run_limited(service, MARKS, SAMOVAR_KILL="commit.before:1") == -signal.SIGKILL
    assert not quarantines(service)
    assert run_limited(service, MARKS) == 0
    assert [each["rule"] for _, each in quarantines(service)] == ["boom"]
    assert not list(service.state.glob("*/over-limit*"))
    equal(service)


def test_kill_9_quarantines_nobody(service: Service) -> None:
    begin(service)
    for _ in range(3):
        assert run_limited(service, PASSES, SAMOVAR_KILL="commit.before:1") == -signal.SIGKILL
    assert run_limited(service, PASSES) == 0
    assert not quarantines(service)
    assert not changes(service)


def test_a_commit_takes_the_mark_away(service: Service) -> None:
    begin(service)
    assert run_limited(service, MARKS, SAMOVAR_KILL="commit.before:1") == -signal.SIGKILL
    assert list(service.state.glob("*/over-limit"))
    assert run_limited(service, MARKS) == 0
    assert not list(service.state.glob("*/over-limit*"))
    assert not quarantines(service)


def test_a_message_that_quotes_large_fields_leaves_a_service_its_memory(service: Service) -> None:
    """All matches of three events that quote 1 kB nine times: 14,190, once of 9 kB each and four times in memory."""
    service.produce(bought("c1", 45, blob="b" * 1024))
    # Of its own memory: what rusage tells begins with the peak of the process that started it.
    script = """
import atexit
from pathlib import Path
atexit.register(lambda: print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))
"""
    command = [sys.executable, "-c", script + LIMITED, "run", str(service.config), "--until-caught-up"]
    done = subprocess.run(
        [*command, "step_bytes=4000000"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 300_000  # kB
    assert len(calm(service)) >= 43  # the last ones wait for event time
    assert not quarantines(service)
