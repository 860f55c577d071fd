"""The alarms of deploy/prometheus fire when they should, and only then, as Prometheus' own promtool finds it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy_files import DEPLOY, Query, alert_rules, documents, faults_of
from tests.support.promtool import ADVICE, find_promtool

FOLDER = DEPLOY / "prometheus"
CASES = FOLDER / "alerts_test.yml"


@pytest.fixture(scope="module")
def promtool() -> str:
    found = find_promtool()
    if found is None:
        pytest.fail(f"no promtool on this machine. {ADVICE}", pytrace=False)
    return found


def cases() -> list[dict[str, Any]]:
    (found,) = documents(CASES)
    return list(found["tests"])


def expected(case: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The alarms of a case, time by time."""
    for each in case["promql_expr_test"]:
        yield tuple(re.findall(r'alertname="(\w+)"', " ".join(sample["labels"] for sample in each["exp_samples"])))


def run(promtool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [promtool, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_alarms_fire_when_they_should_and_only_then(promtool: str) -> None:
    checked = run(promtool, "check", "rules", FOLDER / "alerts.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run(promtool, "test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alarm_has_a_case_in_which_it_fires() -> None:
    fire = {name for case in cases() for names in expected(case) for name in names}
    missing = {rule["alert"] for rule in alert_rules()} - fire
    assert not missing, f"add a case to {CASES.name} in which each of these fires: {sorted(missing)}"


def test_every_case_asks_for_all_alarms_that_fire_and_for_metrics_that_there_are() -> None:
    for case in cases():
        assert {each["expr"] for each in case["promql_expr_test"]} == {
            'count by (alertname) (ALERTS{alertstate="firing"})'
        }, case["name"]
        for series in case["input_series"]:
            in_range = re.sub(r"^(\w+_total\{.*\})$", r"rate(\1[5m])", series["series"])
            assert list(faults_of(Query(case["name"], in_range))) == []


def test_a_case_that_does_not_hold_is_found(promtool: str, tmp_path: Path) -> None:
    """The tests can fail: event time that stands still on a quiet stream would be an alarm again."""
    shutil.copy(CASES, tmp_path)
    text = (FOLDER / "alerts.yml").read_text("utf-8")
    waiting = "(min_over_time(samovar_waiting_events[5m])) > 0)"
    assert waiting in text
    (tmp_path / "alerts.yml").write_text(text.replace(waiting, waiting.replace("> 0", ">= 0")))
    broken = run(promtool, "test", "rules", tmp_path / CASES.name)
    assert broken.returncode != 0
    assert 'got: {alertname="SamovarWatermarkStuck"}' in broken.stdout + broken.stderr
