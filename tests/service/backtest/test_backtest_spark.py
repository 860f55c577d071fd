"""`samovar rules backtest --engine spark` gives what the local engine gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samovar.changelog.spark.session import OpenSession
from tests.support.small_service import RULES, make, many, run

SPREAD = "rule: spread\nmatch: |\n  aggregate by country over 1m [purchase where true] having distinct(card) >= 4\n"
TOO_LOW = RULES["testing"].replace("rule: testing", "rule: lower").replace("amount > 200", "amount > 20")


def test_both_engines_give_the_same(spark: OpenSession, tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(300))
    service.settle()
    service.produce(many(60, start_s=2_000))
    rules = service.config.parent / "rules"
    (rules / "spread.yml").write_text(SPREAD)  # over all partitions as one
    (rules / "lower.yml").write_text(TOO_LOW)

    def found(engine: str) -> dict[str, Any]:
        done = run("rules", "backtest", rules, service.config, "--json", "--engine", engine)
        assert done.exit_code == 0, done.output
        data: dict[str, Any] = json.loads(done.stdout)
        assert data.pop("engine") == engine
        return {name: value for name, value in data.items() if name not in ("seconds", "events_per_s")}

    local = found("local")
    assert found("spark") == local
    assert all(each["found"] > 0 for each in local["rules"])
    assert len(local["rules"]) == 5
