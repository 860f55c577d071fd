"""`samovar doctor`: each finding has its state and its fix, and nothing is changed by looking."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.heartbeat import HeartbeatRecord, MemberMetadata
from samovar.changelog.kafka import facts
from samovar.changelog.kafka.facts import metadata_level, release_of
from samovar.changelog.log import TopicSpec
from samovar.common.errors import Refused
from samovar.service.ops import doctor
from samovar.service.ops.doctor import Diagnosis
from samovar.service.topology.acls import AclEntry
from samovar.state.rocks import RocksStore
from tests.support.project import ROOT
from tests.support.schema_registry import USER, TestRegistry, running
from tests.support.small_service import Service, make, many, run

NOW = 1_800_000_000_000
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def findings(service: Service, code: int = 0, *options: str) -> dict[str, list[dict[str, Any]]]:
    done = run("doctor", service.config, "--json", *options)
    assert done.exit_code == code, done.output
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["about"], []).append(each)
    return found


def states(found: dict[str, list[dict[str, Any]]]) -> dict[str, set[str]]:
    return {about: {each["state"] for each in several} for about, several in found.items()}


# ---------------------------------------------------------------- all is well


def test_a_service_that_is_well(service: Service) -> None:
    service.process(many(20))
    found = findings(service)
    assert set().union(*states(found).values()) == {"ok"}
    assert {"versions", "kernel", "java", "rules", "topics", "disk", "clock", "locks"} <= found.keys()
    text = run("doctor", service.config).stdout
    assert text.splitlines()[-1].endswith(" ok, 0 to look at, 0 wrong")


def test_it_changes_nothing(service: Service, tmp_path: Path) -> None:
    """Before the first run not even the log is there, and it stays so."""
    before = sorted(tmp_path.rglob("*"))
    assert "not made yet" in findings(service)["log"][0]["what"]
    assert sorted(tmp_path.rglob("*")) == before
    service.process(many(20))
    with service.log() as log:
        bounds = {name: log.topics([name]) for name in ("s-changelog", "s-containers", "purchase")}
    findings(service)
    with service.log() as log:
        assert {name: log.topics([name]) for name in bounds} == bounds


# ---------------------------------------------------------------- the registry

PURCHASE = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "card", "type": "string"}, {"name": "ts", "type": "long"}],
}


def test_the_registry_is_asked(service: Service) -> None:
    """Whether it answers, whether it takes us, and whether it knows the stream's schema."""
    with running(TestRegistry(password=USER)) as served:
        text = service.config.read_text()
        asked = f'format: avro, registry: {{url: "{served.url}", basic.auth.user.info: "{USER}", max.retries: 1}}'
        service.config.write_text(re.sub(r"schema: {.*?}", asked, text))

        def told(code: int) -> tuple[str, str]:
            (found,) = findings(service, code)["registry"]
            assert (found["fix"] == "") == (found["state"] == "ok")
            return found["state"], found["what"]

        assert told(0) == ("warn", f"{served.url} answers, and has nothing under purchase-value")
        number = served.add(PURCHASE, "purchase-value")
        assert told(0) == ("ok", f"{served.url} answers; purchase-value is schema {number}")
        served.add("message P {}", "purchase-value", schemaType="PROTOBUF")
        assert told(1) == ("fail", f"schema {number + 1} of the registry is PROTOBUF, not Avro")
        served.trouble = 503
        assert told(1)[1].startswith(f"the schema registry at {served.url} does not answer")
        served.trouble, served.password = None, "another"
        assert told(1)[1].startswith("registry-refused: ")
        assert USER.split(":")[1] not in run("doctor", service.config).output


# ---------------------------------------------------------------- what is wrong


def test_a_service_file_with_errors(service: Service) -> None:
    service.config.write_text("service: s\nstreams: {a: {}}\n")
    found = findings(service, 1)
    assert states(found)["service file"] == {"fail"}
    assert "versions" in found


def test_rules_with_errors(service: Service) -> None:
    (service.config.parent / "rules" / "bad.yml").write_text("rule: bad\nmatch: nothing\n")
    found = findings(service, 1)
    assert found["rules"][0]["what"].startswith("rule-errors: ")


def test_topics_that_are_missing_or_otherwise(service: Service) -> None:
    with service.log() as log:
        log.create([TopicSpec("purchase", 2), TopicSpec("s-journal", 2, {"retention.ms": "1000"})])
    found = findings(service, 1)["topics"]
    wrong = [each for each in found if each["state"] == "fail"]
    assert [each["what"].split(":")[0] for each in wrong] == ["topic-settings"]
    (made,) = [each for each in found if each["state"] == "ok"]  # one line, and nothing to do about it
    assert made["what"].startswith("10 topics not there yet, which `samovar run` makes: s-alerts, ")
    service.config.write_text(service.config.read_text() + "topics: check\n")
    assert states(findings(service, 1))["topics"] == {"fail"}


def test_a_broker_that_is_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ANSWER_S", 0.3)
    service.config.write_text(service.config.read_text() + 'log: {kafka: {bootstrap: "127.0.0.1:1"}}\n')
    found = findings(service, 1)
    assert found["log"][0]["state"] == "fail"
    assert "127.0.0.1:1" in found["log"][0]["fix"]
    assert states(found)["rules"] == {"ok"}


def test_a_folder_that_cannot_be_written(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.process(many(5))
    monkeypatch.setattr(os, "access", lambda _, mode: mode & os.W_OK == 0)
    found = findings(service, 1)
    assert states(found)["state folder"] == {"fail"}
    assert f"chown {os.geteuid()} " in found["state folder"][0]["fix"]


def test_a_folder_on_a_file_system_that_is_read_only(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_read_only", lambda _: True)
    found = findings(service, 1)
    assert states(found)["state folder"] == {"fail"}
    assert "mount it for writing" in found["state folder"][0]["fix"]


@pytest.mark.parametrize(("free", "state"), [(10 << 20, "fail"), (600 << 20, "warn"), (90 << 30, "ok")])
def test_disk_space(service: Service, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, free))
    found = findings(service, 1 if state == "fail" else 0)
    assert states(found)["disk"] == {state}


def test_as_much_again_as_the_state_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 50 << 30))
    assert doctor._space(tmp_path, 40 << 30).state == "ok"
    assert doctor._space(tmp_path, 60 << 30).state == "warn"


def test_network_and_memory_file_systems(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, wanted in (("nfs4", ["warn", "fail"]), ("tmpfs", ["warn"])):
        monkeypatch.setattr(doctor, "file_system", lambda _, kind=kind: kind)
        found = [*doctor.state(service.settings), *doctor.embedded(service.settings)]
        assert [each.state for each in found if each.state != "ok"] == wanted


def test_a_low_limit_of_open_files(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.process(many(5))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    (found,) = findings(service)["open files"]
    assert found["state"] == "warn"
    assert "ulimit -n 4096" in found["fix"]
    findings(service, 1, "--strict")


def test_a_store_that_a_stranger_has_open(service: Service) -> None:
    service.process(many(20))
    code = "import sys; from pathlib import Path; from samovar.state.rocks import RocksStore\n"
    code += f"store = RocksStore(Path({str(service.store(0))!r})); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    found = findings(service)["locks"]
    process.communicate("")
    assert [each["state"] for each in found] == ["warn"]
    assert "no container is in the group" in found[0]["what"]
    assert states(findings(service))["locks"] == {"ok"}
    RocksStore(service.store(0)).close()  # looking left no lock


def test_a_restore_left_halfway(service: Service) -> None:
    service.process(many(20))
    (service.state / "0" / "restore-changelog.part").mkdir()
    (found,) = findings(service)["locks"]
    assert (found["state"], "samovar restore" in found["fix"]) == ("warn", True)


# ---------------------------------------------------------------- clocks, rights, versions


def clock_findings(log_ms: int, time_ms: int, now_ms: int, service: Service) -> list[Diagnosis]:
    service.config.write_text(service.config.read_text() + 'log: {kafka: {bootstrap: "h:9092"}}\n')
    here = MemberMetadata(slot=0, host="h", pid=7, since_ms=NOW, version="1", time_ms=time_ms)
    return [*doctor.clocks(service.settings, {0: HeartbeatRecord(here, log_ms)}, now_ms)]


@pytest.mark.parametrize(
    ("log_ms", "time_ms", "now_ms", "state", "word"),
    [
        (NOW, NOW - 20, NOW, "ok", "within"),
        (NOW, NOW - 5_000, NOW, "warn", "5.0 s behind"),
        (NOW, NOW + 5_000, NOW, "warn", "5.0 s ahead of"),
        (NOW, NOW + 90_000, NOW, "fail", "90.0 s ahead of"),
        (NOW, NOW, NOW - 9_000, "warn", "at least 9.0 s behind"),
    ],
)
def test_clocks(log_ms: int, time_ms: int, now_ms: int, state: str, word: str, service: Service) -> None:
    (found,) = clock_findings(log_ms, time_ms, now_ms, service)
    assert (found.state, word in found.what) == (state, True)


def test_rights_that_are_lacking() -> None:
    wanted = [
        AclEntry(who="service", resource="topic", name="a", operations=("READ", "DESCRIBE", "CREATE")),
        AclEntry(who="service", resource="group", name="s", operations=("READ",)),
        AclEntry(who="service", resource="transactional-id", name="s-", operations=("WRITE",), pattern="prefixed"),
        AclEntry(who="http", resource="topic", name="s-labels", operations=("READ", "WRITE")),
    ]
    all_of_it = {"a": frozenset({"READ", "DESCRIBE"})}
    (found,) = doctor._missing_rights(wanted, all_of_it, {"s": frozenset({"READ"})}, frozenset())
    assert found.state == "ok"
    (found,) = doctor._missing_rights(wanted, {"a": frozenset({"DESCRIBE"})}, {"s": frozenset()}, frozenset())
    assert (found.state, found.what) == ("fail", "this user lacks READ on topic a; READ on group s")
    (found,) = doctor._missing_rights(wanted, {}, {"s": None}, frozenset())  # nothing there, nothing lacking
    assert found.state == "ok"
    (_, found) = doctor._missing_rights(wanted, {"s-labels": frozenset({"READ"})}, {}, frozenset())
    assert (found.state, found.what) == ("warn", "for `samovar serve` this user lacks WRITE on topic s-labels")


def test_replicas(service: Service) -> None:
    settings = service.settings
    assert [each.state for each in doctor._replicas(settings, 3)] == ["warn"]
    more = settings.model_copy(update={"replication": 3})
    assert [each.state for each in doctor._replicas(more, 1)] == ["fail"]
    assert [*doctor._replicas(more, 3)] == []


def test_a_java_that_is_missing_is_said_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise Refused("java-missing", "there is no Java, which a Kafka broker needs", "Install one.")

    monkeypatch.setattr(doctor, "find_java", none)
    found = doctor.java()
    assert (found.state, "only `samovar kafka` and Spark need it" in found.what) == ("ok", True)


def test_a_java_that_is_too_old_is_a_warning_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    found = doctor.java()
    assert (found.state, "is Java 11.0.2" in found.what, "Install version 17" in found.fix) == ("warn", True, True)


def test_a_brokers_version_is_told_by_its_metadata_level() -> None:
    head = b"\0\0\0\1\0\0" + b"\2" + b"\0\x12\0\0\0\4\0" + b"\0\0\0\0"  # one key, no throttling
    feature = b"\x11metadata.version" + b"\0\x1b\0\x01" + b"\0"
    finalized = b"\2" + feature
    assert metadata_level(head + b"\1" + b"\2" + bytes([len(finalized)]) + finalized) == 27
    assert metadata_level(head + b"\0") is None
    assert release_of(27).startswith("4.1 ")


def test_findings_are_frozen() -> None:
    assert replace(Diagnosis("a", "ok", "b"), state="warn").state == "warn"
