"""Topics as Delta tables: each record once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from samovar.changelog.log import TopicSpec
from samovar.common.errors import Refused
from samovar.service.views import export as exporting
from samovar.service.views.delta import SMALL_FILES, OpenTable
from samovar.service.views.export import export, query_table, uri_of
from tests.support.http_server import wait_for
from tests.support.project import ROOT
from tests.support.small_service import Service, make, many, purchase, run, run_apart


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    made.config.write_text(made.config.read_text() + "tables: [purchase, alerts, alerts_testing]\n")
    return made


def exported(service: Service, *names: str, **options: Any) -> list[Any]:
    with service.log() as log:
        return list(export(service.settings, log, names, **options))


def rows(service: Service, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(uri_of(service.settings, name)).to_pyarrow_table().to_pylist()
    return found


def places(service: Service, name: str) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows(service, name))


def in_the_log(service: Service, topic: str) -> Counter[tuple[int, int]]:
    done = run("read", service.config, topic, "--json")
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return Counter((each["partition"], each["offset"]) for each in found)


def test_each_record_is_exported_once_and_only_what_is_new(service: Service) -> None:
    service.process(many(200))
    first = exported(service)
    assert [(each.name, each.commits) for each in first] == [("purchase", 1), ("alerts", 1), ("alerts_testing", 1)]
    assert first[0].rows == 200
    assert [each.commits for each in exported(service)] == [0, 0, 0]
    service.process(many(300)[200:])
    assert exported(service)[0].rows == 100
    for name, topic in (("purchase", "purchase"), ("alerts", "s-alerts")):
        assert places(service, name) == in_the_log(service, topic)
    assert set(places(service, "alerts_testing").values()) <= {1}
    assert {str(row["day"]) for row in rows(service, "purchase")} == {
        str(row["_event_time"].date()) for row in rows(service, "purchase")
    }


def test_a_topic_without_records_is_a_table_with_columns(service: Service) -> None:
    service.process([])
    assert [each.rows for each in exported(service)] == [0, 0, 0]
    table = DeltaTable(uri_of(service.settings, "alerts_testing"))
    assert "at" in [each.name for each in table.schema().fields]
    assert table.metadata().partition_columns == ["day"]


# ---------------------------------------------------------------- exactly once


@pytest.mark.parametrize("point", ["export.before:1", "export.reading:1", "export.reading:2", "export.after:1"])
@pytest.mark.parametrize("first", [False, True])
def test_killed_at_any_moment_no_row_is_lost_or_there_twice(service: Service, point: str, first: bool) -> None:
    service.process(many(150))
    if not first:
        exported(service)
        service.process(many(250)[150:])
    killed = run_apart("tables", "export", service.config, "purchase", SAMOVAR_KILL=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    exported(service)
    assert places(service, "purchase") == in_the_log(service, "purchase")


def test_two_at_once_and_others_who_write_lose_and_repeat_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "COMMIT_OFFSETS", 40)  # many commits
    service.process(many(400))
    ends: list[Any] = []
    with service.log() as log:
        settings = service.settings

        def go() -> None:
            ends.append(list(export(settings, log, ["purchase"])))

        threads = [threading.Thread(target=go) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(each.rows for (each,) in ends) == 400
    assert places(service, "purchase") == in_the_log(service, "purchase")


def test_a_compaction_of_somebody_else_between_look_and_commit_repeats_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.process(many(100))
    exported(service)
    service.process(many(150)[100:])
    real, times = OpenTable.append, []

    def append(self: Any, *given: Any) -> None:
        times.append(1)
        if len(times) == 1:
            DeltaTable(self.uri).alter.set_table_properties({"delta.checkpointInterval": "50"})
        real(self, *given)

    monkeypatch.setattr(OpenTable, "append", append)
    assert exported(service, "purchase")[0].rows == 50
    assert len(times) == 2
    assert places(service, "purchase") == in_the_log(service, "purchase")


# ---------------------------------------------------------------- columns


RULE = """
rule: testing
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=2..
    [purchase where amount > 200] as big
emit:
  amount: big.amount
"""


def publish(service: Service, text: str) -> None:
    path = service.config.parent / "testing.yml"
    path.write_text(text.lstrip())
    done = run("rules", "publish", service.config, path, "--author", "me", "--yes")
    assert done.exit_code == 0, done.output


def alert(service: Service, card: str, at: int) -> None:
    service.process([purchase(card, at, 1), purchase(card, at + 1, 1), purchase(card, at + 2, 900)])
    service.settle()


def test_what_a_new_version_of_a_rule_emits_is_a_new_column(service: Service) -> None:
    alert(service, "c1", 10)
    exported(service)
    publish(service, RULE)
    alert(service, "c2", 100)
    (made,) = exported(service, "alerts_testing")
    assert (made.rows, made.added) == (1, ("emit",))
    publish(service, RULE + "  country: big.country\n")
    alert(service, "c3", 200)
    (made,) = exported(service, "alerts_testing")
    assert made.added == ("emit.country",)
    found = {row["_key"]: row["emit"] for row in rows(service, "alerts_testing")}
    assert found == {
        "c1": None,
        "c2": {"amount": 900.0, "country": None},
        "c3": {"amount": 900.0, "country": "US"},
    }
    old = DeltaTable(uri_of(service.settings, "alerts_testing"), version=made.version - 1)
    assert "country" not in str(old.schema().to_arrow())


def test_a_field_of_another_type_is_refused_and_rewritten_on_demand(service: Service) -> None:
    publish(service, RULE)
    alert(service, "c1", 10)
    exported(service)
    publish(service, RULE.replace("big.amount", "big.country"))
    alert(service, "c2", 100)
    (refused,) = exported(service, "alerts_testing")
    assert isinstance(refused, Refused)
    assert (refused.code, "`emit.amount` is double" in refused.what) == ("table-schema", True)
    (made,) = exported(service, "alerts_testing", rewrite=True)
    assert made.rows == 1
    found = {row["_key"]: row["emit"]["amount"] for row in rows(service, "alerts_testing")}
    assert found == {"c1": "900", "c2": "US"}
    assert set(places(service, "alerts_testing").values()) == {1}


# ---------------------------------------------------------------- what is not ours


def test_a_topic_that_was_made_again_and_a_table_of_others_are_refused(service: Service) -> None:
    service.process(many(20))
    exported(service, "purchase")
    with service.log() as log:
        log.delete(["purchase"])
        log.create([TopicSpec(name="purchase", partitions=2)])
    service.produce(many(5))
    (refused,) = exported(service, "purchase")
    assert isinstance(refused, Refused)
    assert refused.code == "table-foreign"
    write_deltalake(uri_of(service.settings, "alerts"), pa.table({"n": [1]}))
    (refused,) = exported(service, "alerts")
    assert isinstance(refused, Refused)
    assert refused.code == "table-foreign"


@pytest.mark.parametrize(
    ("name", "said"), [("alrets", "did you mean `alerts`?"), ("states", "What can be exported is")]
)
def test_what_cannot_be_a_table_is_named(service: Service, name: str, said: str) -> None:
    service.config.write_text(service.config.read_text().replace("[purchase,", f"[{name},"))
    service.process([])
    done = run("tables", "export", service.config, name)
    assert done.exit_code == 1
    assert f"unknown-table: `tables` names `{name}`" in done.stderr
    assert said in done.stderr


# ---------------------------------------------------------------- small files, time, the command line


def test_many_small_files_are_merged_and_versions_before_stay(service: Service) -> None:
    for number in range(SMALL_FILES + 1):
        service.produce([purchase(f"c{number % 3}", number, 50)])
        exported(service, "purchase")
    table = DeltaTable(uri_of(service.settings, "purchase"))
    assert len(table.file_uris()) <= 2
    assert places(service, "purchase") == in_the_log(service, "purchase")
    for version in range(5):
        assert len(query_table(service.settings, "purchase", 1000, version=version).rows) == version + 1


def test_as_the_command_line_has_it(service: Service) -> None:
    service.process(many(60))
    done = run("tables", "list", service.config)
    assert done.stdout.splitlines()[0].startswith("purchase        never exported; ")
    done = run("tables", "query", service.config, "purchase")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (
        2, "table-not-made: the table purchase was never exported",
    )  # fmt: skip
    done = run("tables", "export", service.config)
    assert done.stdout.splitlines()[0].startswith("purchase: 60 rows more, version 0, ")
    made = int(time.time() * 1000)
    wait_for(lambda: int(time.time() * 1000) > made)
    service.process(many(80)[60:])
    assert "purchase        version 0, 60 rows; 20 records behind; " in run("tables", "list", service.config).stdout
    assert run("tables", "export", service.config, "purchase").exit_code == 0
    for options, count in ((["--version", "0"], 60), (["--as-of", str(made)], 60), ([], 80)):
        done = run("tables", "query", service.config, "purchase", "--json", "--limit", "1000", *options)
        assert done.exit_code == 0, (done.output, done.exception)
        assert len(json.loads(done.stdout)["rows"]) == count
    done = run("tables", "query", service.config, "purchase", "--as-of", "2020-01-01")  # before there was a table
    assert (done.exit_code, "its oldest version, 0, was made at" in done.stderr) == (2, True)
    assert "  version 1: " in run("tables", "show", service.config, "purchase").stdout
    assert run("tables", "maintain", service.config).exit_code == 0
    done = run("tables", "export", service.config, "purchse")
    assert (done.exit_code, "did you mean `purchase`?" in done.stderr) == (2, True)


def test_it_goes_on_until_it_is_told_to_end(service: Service) -> None:
    service.process(many(30))
    words = ["tables", "export", str(service.config), "purchase", "--every", "50ms"]
    command = [sys.executable, "-m", "samovar.service.cli", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        table = Path(uri_of(service.settings, "purchase"))
        wait_for((table / "_delta_log").exists, 60)
        service.produce(many(45)[30:])
        wait_for(lambda: len(rows(service, "purchase")) == 45, 60)
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sum(int(line.split()[2]) for line in out.splitlines()) == 45
