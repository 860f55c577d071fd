"""The service of a scenario: its folder with the service file and the rules, as a user would have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samovar.common.errors import Refused
from samovar.patterns.rulefile.rule_file import load_text
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.topology.stages import stages_of
from tests.simulation.counting import SETTINGS, TASK
from tests.simulation.scenario import Scenario

SERVICE = "sim"


def write_service(scenario: Scenario, folder: Path) -> ServiceFile:
    """Write the service's folder, and load it."""
    (folder / "rules").mkdir(parents=True)
    for name, text in scenario.rules.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    return write_service_file(scenario, folder)


def write_service_file(scenario: Scenario, folder: Path, **more: Any) -> ServiceFile:
    """The service file alone, with further settings."""
    data: dict[str, Any] = {
        "service": SERVICE,
        "streams": {name: {"topic": name, **spec} for name, spec in scenario.streams.items()},
        "tunables": {
            name: f"{value}B" if name.endswith("_bytes") else value for name, value in scenario.tunables.items()
        },
        **scenario.settings,
        **more,
    }
    if scenario.user_task:
        data["tasks"] = {TASK: {**SETTINGS, "streams": list(scenario.streams)}}
    path = folder / "service.yml"
    path.write_text(json.dumps(data))  # YAML can read JSON
    return load_service(path)


def can_be_staged(text: str) -> bool:
    """Whether a rule can run where there are several partitions."""
    rule = load_text(text).rule
    assert rule is not None, text
    stream = Stream.model_validate({"topic": "ev", "key": "u", "type": "type"})
    try:
        stages_of([rule], {"ev": stream}, 2)
    except Refused:
        return False
    return True
