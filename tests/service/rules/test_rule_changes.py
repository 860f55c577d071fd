"""Rules that change while a service runs: each partition takes a change once, at a place that its journal tells, and
replay, rebuild, verify, restore and rewind do the same (P1, P2).
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from samovar.changelog.formats.journal import JournalEntry, unpack_entry
from samovar.changelog.formats.rules_topic import append_changes
from samovar.changelog.log import Append, Pair, TopicPartition
from samovar.common.errors import Refused
from samovar.service.query.state.counts import states_here
from samovar.service.rules.publishing import plan_publish, publish
from samovar.service.runtime.rule_source import PublishedRuleSource
from samovar.service.runtime.running import container_of
from samovar.service.topology.rule_registry import load_registry
from samovar.service.topology.stores import site_of
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.heartbeat import HeartbeatReporter
from samovar.tasks.runtime.metrics import MetricsSampler
from tests.contracts.log_driving import read_to_end
from tests.support.small_service import RULES, Service, catch_up, make, many, purchase, run

BIG = """
rule: big
match: |
  sequence by card with maxspan=0ms
    [purchase where amount > 500] as p
"""
TESTING_3 = RULES["testing"].replace("runs=2..", "runs=1..")
RISKY = """
rule: risky
lists: {places: [FR]}
match: |
  sequence by card with maxspan=10m
    [purchase where country in $places] as first
    [purchase where country in $places] as second
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def published(service: Service, text: str, *options: object, code: int = 0, name: str = "rule.yml") -> dict[str, Any]:
    file = service.config.parent / name
    file.write_text(text)
    done = run("rules", "publish", service.config, file, "--json", "--yes", *options)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout) if code == 0 else {"refused": done.stderr}
    return found


def take(container: Container) -> None:
    """Look at the rules topic, as a thread does while a service runs; and go on."""
    assert isinstance(container.rule_source, PublishedRuleSource)
    container.rule_source.refresh()
    catch_up(container)


def alerts(service: Service) -> list[dict[str, Any]]:
    with service.log() as log:
        return [json.loads(row.value or b"") for row in read_to_end(log, "s-alerts")]


def journal(service: Service, partition: int) -> list[JournalEntry]:
    with service.log() as log:
        rows = read_to_end(log, "s-journal")
        return [unpack_entry(row.value or b"") for row in rows if row.at.partition == partition]


def equal(service: Service) -> None:
    """P2: store, changelog and source by digest; P1: the fold of the source raises the alerts that were raised."""
    done = run("verify", service.config, "--json")
    assert done.exit_code == 0, done.output
    for each in json.loads(done.stdout):
        assert len(set(each["digests"].values())) == 1, each
    raised = sorted(alert["id"] for alert in alerts(service))
    assert sorted(folded(service)) == raised


def folded(service: Service) -> list[str]:
    """The ids of all alerts that a fold of input and journal raises."""
    found: list[str] = []

    def take_ids(pairs: Sequence[Pair]) -> None:
        found.extend(json.loads(value or b"")["id"] for _, value in pairs)

    with service.log() as log:
        site = site_of(service.settings, log)
        for each in site.stages():
            for partition in range(site.partitions):
                until = ReplayEnd({spec.stream: _end(log, spec.topic, partition) for spec in each.plan.inputs})
                rebuild(log, each.plan, partition, MemoryStore(), until, on_alerts=take_ids)
    return found


def _end(log: Any, topic: str, partition: int) -> int:
    at = TopicPartition(topic, partition)
    return int(log.bounds([at])[at].end)


def test_a_running_service_takes_a_rule_between_two_batches(service: Service) -> None:
    service.produce(many(60))
    with service.container() as container:
        before = {alert["rule"] for alert in alerts(service)}
        assert "big" not in before
        published(service, BIG)
        service.produce(many(60, start_s=600))
        take(container)
        took = [alert for alert in alerts(service) if alert["rule"] == "big"]
        assert took
        assert min(alert["at"] for alert in took) > max(event["ts"] for event in many(60)) - 2_000
    equal(service)
    for partition in (0, 1):
        entries = [entry for entry in journal(service, partition) if entry.kind == "rules"]
        assert [entry.facts.get("change") for entry in entries] == [None, 2]
        assert entries[1].inputs["purchase"] > 0
    with service.log() as log:
        registry = load_registry(service.settings, log)
        effect = registry.took_effect("big", 1)
        assert effect is not None
        assert {partition: dict(inputs) for partition, inputs in effect.items()} == {
            partition: dict([e for e in journal(service, partition) if e.kind == "rules"][1].inputs)
            for partition in (0, 1)
        }
        assert registry.took_effect("big", 2) is None
        assert registry.took_effect("testing", 1) == {0: {"purchase": 0}, 1: {"purchase": 0}}


def tide(second: float) -> list[dict[str, Any]]:
    """Events of no interest in all partitions, so that what is two seconds older waits no more."""
    return [purchase(f"t{n}", second, 5) for n in range(8)]


def test_what_has_not_changed_keeps_its_partial_matches(service: Service) -> None:
    service.produce([purchase("c1", 0, 1), purchase("c1", 1, 1), *tide(4)])
    with service.container() as container:
        published(service, BIG)
        take(container)
        service.produce([purchase("c1", 5, 900), *tide(30)])
        catch_up(container)
    assert [alert["rule"] for alert in alerts(service) if alert["rule"] != "unusual"] == ["testing", "big"]
    equal(service)


def test_a_changed_rule_drops_its_partial_matches_or_drains_them(service: Service) -> None:
    found: dict[str, list[str]] = {}
    for option in ("drop", "drain"):
        own = make(service.config.parent / option)
        own.produce([purchase("c1", 0, 1), purchase("c1", 1, 1), purchase("c2", 2, 1), *tide(4.5)])
        with own.container() as container:
            plan = published(own, TESTING_3, *(["--drain"] if option == "drain" else []))
            assert [(each["name"], each["number"], each["state"]) for each in plan["rules"]] == [
                ("testing", 2, "drained" if option == "drain" else "dropped")
            ]
            assert (plan["rules"][0]["states"], plan["rules"][0]["states_whole"]) == (2, True)
            counted = states_here(own.settings, [""], 2, look_s=0)  # no time for more than the first store
            assert counted is not None
            assert not counted.is_whole
            take(container)
            # c1 began before the change and ends after it; c3, which both versions would find, begins after it
            probes = [purchase("c3", 5, 1), purchase("c3", 5.5, 1)]
            own.produce([*probes, purchase("c1", 6, 900), purchase("c3", 7, 900), *tide(30)])
            catch_up(container)
        equal(own)
        raised = [alert for alert in alerts(own) if alert["rule"] == "testing"]
        found[option] = sorted(f"{alert['key']['card']} {alert['version']}" for alert in raised)
        versions = {number: entry["version"] for number, entry in numbered(own, "testing").items()}
        if option == "drop":
            assert found[option] == [f"c3 {versions[2]}"]
        else:
            assert found[option] == sorted([f"c1 {versions[1]}", f"c3 {versions[2]}"])


def test_a_version_that_has_drained_goes(service: Service) -> None:
    service.produce([purchase("c1", 0, 1)])
    with service.container() as container:
        published(service, TESTING_3, "--drain")
        take(container)
        service.produce([purchase(f"c{n}", 300, 5) for n in range(8)])
        catch_up(container)
        assert any(rule.drains for task in container.tasks.values() for rule in task.processor.plan.rules)
        service.produce([purchase(f"c{n}", 700, 5) for n in range(8)])
        catch_up(container)
        container.cycle()
        assert not any(rule.drains for task in container.tasks.values() for rule in task.processor.plan.rules)
    equal(service)


def test_disable_enable_rollback_and_their_history(service: Service) -> None:
    service.produce(many(20))
    with service.container() as container:
        published(service, TESTING_3, "--note", "one probe is enough", "--author", "ada")
        take(container)
        for words in (["disable", "testing"], ["enable", "testing"], ["rollback", "testing"]):
            done = run("rules", words[0], service.config, *words[1:], "--yes")
            assert done.exit_code == 0, done.output
            service.produce(many(20, start_s=100 * len(words)))
            take(container)
    equal(service)
    history = numbered(service, "testing")
    assert run("rules", "history", service.config, "testing", "--text", 1).stdout == RULES["testing"]
    assert run("rules", "history", service.config, "testing", "--text", 9).exit_code == 2
    assert run("rules", "history", service.config, "--text", 1).exit_code == 2
    assert [(n, each["act"], each["status"]) for n, each in history.items()] == [
        (1, "seed", "live"),
        (2, "publish", "live"),
        (3, "disable", "disabled"),
        (4, "enable", "live"),
        (5, "rollback", "live"),
    ]
    assert history[2]["note"] == "one probe is enough"
    assert history[2]["author"] == "ada"
    assert history[5]["version"] == history[1]["version"] != history[4]["version"] == history[2]["version"]
    assert all(each["took_effect"].keys() == {"0", "1"} for each in history.values())
    diff = run("rules", "diff", service.config, "testing", 1, 2)
    assert diff.exit_code == 1
    assert "-    [purchase where amount < 2] as probe with runs=2.." in diff.stdout
    assert run("rules", "diff", service.config, "testing", 1, 5).exit_code == 0


def numbered(service: Service, name: str) -> dict[int, dict[str, Any]]:
    done = run("rules", "history", service.config, name, "--json")
    assert done.exit_code == 0, done.output
    return {each["number"]: each for each in json.loads(done.stdout)["entries"]}


def test_a_rule_with_errors_is_refused_and_the_old_one_goes_on(service: Service) -> None:
    service.produce(many(20))
    with service.container() as container:
        refused = published(service, RULES["testing"].replace("amount < 2", "amont < 2"), code=2)["refused"]
        assert "rule-errors" in refused
        assert "^" in refused
        take(container)
        service.produce(many(30, start_s=60))
        catch_up(container)
    assert "testing" in {alert["rule"] for alert in alerts(service)}
    assert "nothing was published yet" in run("rules", "history", service.config).stdout
    equal(service)


def test_a_dry_run_writes_nothing(service: Service) -> None:
    service.process(many(5))
    assert published(service, BIG, "--dry-run")["written"] is False
    assert "nothing was published yet" in run("rules", "history", service.config).stdout


def test_a_rule_in_shadow_is_counted_and_raises_nothing(service: Service) -> None:
    service.produce([*many(5), *tide(20)])
    with service.container() as container:
        published(service, BIG, "--shadow")
        take(container)
        service.produce([*many(60, start_s=60), *tide(300)])
        catch_up(container)
        assert "big" not in {alert["rule"] for alert in alerts(service)}
        muted = sum(task.processor.counts.muted for task in container.tasks.values())
        assert muted == sum(event["amount"] > 500 for event in many(60)) == 10
        assert run("rules", "enable", service.config, "big", "--yes").exit_code == 0
        take(container)
        service.produce(many(60, start_s=600))
        catch_up(container)
    assert "big" in {alert["rule"] for alert in alerts(service)}
    equal(service)


def test_a_list_changes_without_publishing_and_states_stay(service: Service) -> None:
    service.produce([purchase("c1", 0, 5, "FR"), *tide(5)])
    with service.container() as container:
        published(service, RISKY)
        take(container)
        service.produce([purchase("c1", 10, 5, "FR"), *tide(20)])
        catch_up(container)
        done = run("lists", "add", service.config, "places", "DE", "--json", "--yes", "--note", "a wave of them")
        assert done.exit_code == 0, done.output
        plan = json.loads(done.stdout)
        assert plan["lists"] == {"places": {"items": 2, "added": ["DE"], "removed": []}}
        assert [(each["name"], each["state"]) for each in plan["rules"]] == [("risky", "moved")]
        take(container)
        service.produce([purchase("c1", 30, 5, "DE"), *tide(60)])
        catch_up(container)
    (alert,) = [alert for alert in alerts(service) if alert["rule"] == "risky"]
    assert alert["start"] == purchase("c1", 10, 5)["ts"]
    assert "places: FR, DE" in run("lists", "show", service.config).stdout
    assert "a wave of them" in run("rules", "history", service.config).stdout
    equal(service)


def test_list_items_come_from_a_file_and_go_again(service: Service, tmp_path: Path) -> None:
    service.process(many(5))
    published(service, RISKY)
    (tmp_path / "items.txt").write_text("# countries\nDE\n\nIT\n")
    assert run("lists", "add", service.config, "places", "--file", tmp_path / "items.txt", "--yes").exit_code == 0
    assert run("lists", "remove", service.config, "places", "FR", "DE", "--yes").exit_code == 0
    assert json.loads(run("lists", "show", service.config, "--json").stdout) == {"places": ["IT"]}
    again = run("lists", "remove", service.config, "places", "FR", "--yes")
    assert (again.exit_code, "list-unchanged" in again.stderr) == (2, True)
    unknown = run("lists", "add", service.config, "plces", "FR", "--yes")
    assert (unknown.exit_code, "did you mean `places`" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("option", ["changelog", "source"])
def test_a_lost_store_comes_back_with_the_rules_it_had(service: Service, option: str) -> None:
    service.produce(many(40))
    with service.container() as container:
        published(service, TESTING_3, "--drain", "--shadow")
        take(container)
        service.produce(many(40, start_s=200))
        catch_up(container)
    before = service.digests()
    shutil.rmtree(service.state)
    done = run("restore", service.config, "--from", option, "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before
    service.process(many(40, start_s=400))
    for partition in (0, 1):  # and is not changed once more
        books = [entry.facts.get("change") for entry in journal(service, partition) if entry.kind == "rules"]
        assert books == [None, 2]
    assert "testing" not in {
        alert["rule"] for alert in alerts(service) if alert["start"] > many(1, start_s=210)[0]["ts"]
    }
    equal(service)


def test_a_rewind_to_before_a_change_takes_it_again(service: Service) -> None:
    service.produce(many(40))
    with service.container() as container:
        published(service, BIG)
        take(container)
        service.produce(many(40, start_s=200))
        catch_up(container)
    before = sorted(alert["id"] for alert in alerts(service))
    done = run("rewind", service.config, "--to-time", many(1, start_s=60)[0]["ts"])
    assert done.exit_code == 0, done.output
    with service.container():
        pass
    assert len({alert["id"] for alert in alerts(service)}) == len(alerts(service)) >= len(before)
    done = run("verify", service.config, "--json")
    assert done.exit_code == 0, done.output


BY_COUNTRY = """
rule: by-country
match: |
  sequence by country with maxspan=10m
    [purchase where amount > 500] as one
    [purchase where amount > 500] as two
"""
SPENT = """
rule: spent
match: |
  aggregate by country over 2m
    [purchase where amount > 500]
    having count() >= 3
suppress: 1s
"""


def test_a_rule_of_another_key_makes_a_stage_and_changes_in_it(service: Service) -> None:
    service.produce([*many(40), *tide(200)])
    with service.container() as container:
        plan = published(service, BY_COUNTRY)
        assert plan["stages"] == {"new": ["by-country"], "gone": []}
        take(container)
        service.produce([*many(40, start_s=300), *tide(500)])
        catch_up(container)
        catch_up(container)
        found = [alert for alert in alerts(service) if alert["rule"] == "by-country"]
        assert found
        assert published(service, BY_COUNTRY.replace("10m", "11m"), "--drain")["rules"][0]["state"] == "drained"
        published(service, SPENT, "--warm-from", many(1)[0]["ts"] - 3_600_000)
        take(container)
        catch_up(container)
        service.produce([*many(40, start_s=600), *tide(900)])
        catch_up(container)
        catch_up(container)
        assert {alert["rule"] for alert in alerts(service)} >= {"spent"}
        assert run("rules", "disable", service.config, "by-country", "--yes").exit_code == 0
        assert run("rules", "disable", service.config, "spent", "--yes").exit_code == 0
        take(container)
        assert {stage for stage, _ in container.tasks} == {""}
        service.produce([*many(10, start_s=1_000), *tide(1_100)])
        catch_up(container)
    done = run("verify", service.config, "--json")
    assert done.exit_code == 0, done.output
    assert all(len(set(each["digests"].values())) == 1 for each in json.loads(done.stdout))


def test_stages_are_folded_alike(service: Service) -> None:
    """P1, P2 of a stage whose rules changed while it ran."""
    service.produce([*many(40), *tide(200)])
    with service.container() as container:
        published(service, BY_COUNTRY)
        take(container)
        for start_s in (300, 600):
            service.produce([*many(40, start_s=start_s), *tide(start_s + 200)])
            catch_up(container)
            catch_up(container)
            published(service, SPENT if start_s == 300 else BY_COUNTRY.replace("10m", "12m"), "--drain")
            take(container)
            catch_up(container)
        service.produce([*many(40, start_s=900), *tide(1_200)])
        catch_up(container)
        catch_up(container)
    equal(service)


def test_two_writers_at_once_and_only_one_counts(service: Service) -> None:
    service.process(many(5))
    with service.log() as log:
        first = plan_publish(service.settings, log, BIG)
        second = plan_publish(service.settings, log, RISKY)
        assert publish(service.settings, log, first, "ada").number == 1
        with pytest.raises(Refused) as refused:
            publish(service.settings, log, second, "bob")
        assert refused.value.code == "change-overtaken"
        # and where both have looked before either wrote: what stands first counts
        changes = second.changes("bob", "", 0, {})
        with pytest.raises(Refused) as refused:
            append_changes(log, "s", changes)
        assert refused.value.code == "change-overtaken"
        registry = load_registry(service.settings, log)
    assert [entry.name for entry in registry.entries] == ["countries", "testing", "unusual", "big"]


def test_a_change_that_a_container_cannot_take_is_told_and_the_old_rules_go_on(service: Service) -> None:
    """As where its service file knows other fields than that of anyone who published."""
    said: list[str] = []
    service.produce([*many(20), *tide(100)])
    with service.log() as log:
        container = container_of(service.settings, log, 0, said.append, service.clock)
        try:
            catch_up(container)
            text = service.config.read_text()
            service.config.write_text(text.replace("country: string", "country: string, city: string"))
            published(service, BIG.replace("amount > 500", 'city == "Oslo"'))
            service.config.write_text(text)
            take(container)
            assert any("change 2 of the rules is not taken" in line for line in said), said
            assert trouble(container)
            events = [*many(20, start_s=200), *tide(400)]  # its own file is not read again
            log.append(
                [
                    Append(
                        topic="purchase",
                        records=[(each["card"].encode(), json.dumps(each).encode()) for each in events],
                    )
                ]
            )
            catch_up(container)
            assert "testing" in {alert["rule"] for alert in alerts(service)}
            assert run("rules", "disable", service.config, "big", "--yes").exit_code == 0
            take(container)
            assert not trouble(container)
        finally:
            container.close()
    equal(service)
    assert [entry.facts.get("change") for entry in journal(service, 0) if entry.kind == "rules"] == [None, 3]


def trouble(container: Container) -> bool:
    return container.rule_source.trouble is not None


def test_a_lost_rules_topic_is_refused_never_guessed(service: Service) -> None:
    service.process(many(5))
    published(service, BIG)
    service.process(many(5, start_s=60))
    with service.log() as log:
        log.delete(["s-rules"])
    refused = run("run", service.config, "--until-caught-up")
    assert refused.exit_code == 2
    assert "rules-topic-lost: " in refused.stderr


def test_status_tells_numbers_shadow_and_what_drains(service: Service) -> None:
    service.produce([*many(20), *tide(100)])
    with service.container() as container, service.log() as log:
        published(service, BIG, "--shadow")
        published(service, TESTING_3, "--drain")
        take(container)
        observer = MetricsSampler(container, service.clock)
        observer(now=True)
        HeartbeatReporter(log, "s", observer).report()
        told = run("status", service.config)
        assert "rule big number 1, version " in told.stdout
        assert ": shadow" in told.stdout
        assert "rule testing number 2, version " in told.stdout
        assert ": draining" in told.stdout
        rules = json.loads(run("status", service.config, "--json").stdout)["rules"]
        assert {(each["rule"], each["number"], each["status"]) for each in rules} == {
            ("big", 1, "shadow"), ("countries", 1, "live"), ("testing", 1, "draining"), ("testing", 2, "live"),
            ("unusual", 1, "live"),
        }  # fmt: skip


# ---------------------------------------------------------------- asked first

CHANGES = {
    "publish": ("rules", "publish", "FILE"),
    "disable": ("rules", "disable", "testing"),
    "enable": ("rules", "enable", "unusual"),
    "rollback": ("rules", "rollback", "countries", "--to", "1"),
    "lists add": ("lists", "add", "places", "DE"),
    "lists remove": ("lists", "remove", "places", "FR"),
}


@pytest.fixture
def changed(service: Service) -> Service:
    """With something for every command to change."""
    service.process(many(5))
    published(service, RISKY)
    published(service, RULES["countries"] + "title: more than one country\n")
    assert run("rules", "disable", service.config, "unusual", "--yes").exit_code == 0
    (service.config.parent / "big.yml").write_text(BIG)
    return service


def change(service: Service, name: str, *options: str) -> Result:
    group, act, *rest = CHANGES[name]
    given = [str(service.config.parent / "big.yml") if each == "FILE" else each for each in rest]
    return run(group, act, service.config, *given, *options)


def last_change(service: Service) -> int:
    with service.log() as log:
        return load_registry(service.settings, log).change


@pytest.mark.parametrize("name", CHANGES)
def test_where_nobody_can_be_asked_a_change_needs_yes(changed: Service, name: str) -> None:
    before = last_change(changed)
    done = change(changed, name)
    assert (done.exit_code, done.stderr.partition(":")[0]) == (2, "confirmation-required"), done.output
    assert "--yes" in done.stderr
    assert f"change {before + 1}: " in done.stdout  # what it would have done
    alone = change(changed, name, "--json")
    assert (alone.exit_code, json.loads(alone.stdout)["written"]) == (0, False), alone.output
    looked = change(changed, name, "--yes", "--dry-run")
    assert (looked.exit_code, last_change(changed)) == (0, before)
    both = change(changed, name, "--json", "--yes")
    assert (both.exit_code, json.loads(both.stdout)["written"]) == (0, True), both.output
    assert last_change(changed) == before + 1


def at_a_terminal(answer: bytes, *arguments: object) -> int:
    """The exit code of a command whose questions are answered by a person."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "samovar.service.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.close(theirs)
        os.write(ours, answer)
        told, _ = process.communicate(timeout=60)
    os.close(ours)
    assert b"write change" in told, told
    return process.returncode


def test_a_person_at_a_terminal_is_asked(changed: Service) -> None:
    before, words = last_change(changed), ("rules", "publish", changed.config, changed.config.parent / "big.yml")
    assert (at_a_terminal(b"n\n", *words), last_change(changed)) == (1, before)
    assert (at_a_terminal(b"y\n", *words), last_change(changed)) == (0, before + 1)


def test_a_rule_that_is_published_already_is_refused(service: Service) -> None:
    service.process(many(5))
    in_the_folder = published(service, RULES["testing"], code=2)["refused"]
    assert in_the_folder.startswith("rule-unchanged: the rule testing is published like this already")
    published(service, BIG)
    assert "rule-unchanged" in published(service, BIG, code=2)["refused"]
    assert published(service, BIG, "--shadow")["written"]  # which changes it
    assert "rule-unchanged" in published(service, BIG, "--shadow", code=2)["refused"]
    same = run("rules", "rollback", service.config, "testing", "--to", 1, "--yes")
    assert (same.exit_code, "rule-unchanged" in same.stderr) == (2, True)


def test_of_several_rules_those_that_did_not_change_are_left_out(service: Service) -> None:
    service.process(many(5))
    published(service, BIG, name="big.yml")
    (service.config.parent / "risky.yml").write_text(RISKY)
    files = [service.config.parent / name for name in ("big.yml", "risky.yml")]
    done = run("rules", "publish", service.config, *files, "--json", "--yes")
    found = json.loads(done.stdout)
    assert ([each["name"] for each in found["rules"]], found["unchanged"]) == (["risky"], ["big"])
    assert list(numbered(service, "big")) == [1]
