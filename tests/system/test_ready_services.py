"""The services of examples/: they run as they are, and find what is planted in their traffic."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from samovar.service.config.loading import load_service
from samovar.service.topology.ruleset import rules_of
from tests.support.project import ROOT
from tests.support.small_service import run, run_apart

EXAMPLES = ROOT / "examples"
# What is over within minutes, so that it is found in an hour of traffic.
FOUND = {
    "fraud": {
        "account-takeover", "card-farm", "card-testing", "country-hopping", "dormant-account", "impossible-travel",
        "mule-account", "order-unpaid", "password-spray", "payment-without-login", "refund-abuse", "structuring",
        "velocity-count", "velocity-sum",
    },
    "sessions": {
        "bot-pace", "bounce", "busy-page", "cart-abandoned", "funnel-completed", "rage-clicks", "session-summary",
    },
}  # fmt: skip


def copied(name: str, folder: Path) -> Path:
    shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns(".samovar"))
    return folder / name / "service.yml"


@pytest.mark.parametrize("name", ["fraud", "sessions"])
def test_the_schemas_are_those_of_the_pack(name: str) -> None:
    settings = load_service(EXAMPLES / name / "service.yml", {})
    types: dict[str, Any] = {}
    for stream, one in settings.streams.items():
        assert one.fields is not None
        types |= one.fields if one.type is not None else {stream: one.fields}
    assert types == yaml.safe_load((EXAMPLES / name / "schema.yml").read_text("utf-8"))
    assert {rule.id for rule in rules_of(settings).rules} == FOUND[name]


@pytest.mark.parametrize("name", ["fraud", "sessions"])
def test_all_rules_of_a_service_find_something_in_its_traffic(name: str, tmp_path: Path) -> None:
    config = copied(name, tmp_path)
    written = run_apart("traffic", config, "--rate", 10, "--backfill", "130m", "--for", "0s", "--json")
    assert written.returncode == 0, written.stderr
    assert json.loads(written.stdout)["passed_over"] == 0
    ended = run_apart("run", config, "--until-caught-up", "--json")
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout)
    assert (counts["late"], counts["dead"], counts["events"]) == (0, 0, json.loads(written.stdout)["events"])
    alerts = Counter(
        json.loads(line)["value"]["rule"] for line in run("read", config, "alerts", "--json").stdout.splitlines()
    )
    assert set(alerts) == FOUND[name]
