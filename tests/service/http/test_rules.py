"""The rules as the HTTP process knows them: an author who publishes one finds it at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from samovar.service.query.rule_cache import LOOK_EVERY_S, LoadedRules, RuleCache
from samovar.service.rules.publishing import plan_publish, publish
from samovar.service.topology.logs import open_log
from tests.faults.harness import make_service

RULE = """
rule: {name}
match: |
  sequence by card with maxspan=1m
    [use where true] as one
"""


def test_what_was_published_is_found_although_a_look_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look begins before the change, or is not at its end when somebody asks for the new rule."""
    service = make_service(tmp_path / "s", {"first": RULE.format(name="first")}, {"use": {"key": "card"}})
    assert service.partitions
    rule_cache = RuleCache(service.settings, service.log)
    assert rule_cache.get().rules.keys() == {"first"}

    look, load = RuleCache._poll, RuleCache._load
    has_begun, may_look, is_loading, may_load = (threading.Event() for _ in range(4))

    def slow_look(self: RuleCache) -> None:
        has_begun.set()
        assert may_look.wait(30)
        look(self)

    def slow_load(self: RuleCache) -> LoadedRules:
        is_loading.set()
        assert may_load.wait(30)
        return load(self)

    monkeypatch.setattr(RuleCache, "_poll", slow_look)
    monkeypatch.setattr(RuleCache, "_load", slow_load)
    rule_cache._looked_s -= 2 * LOOK_EVERY_S
    rule_cache.get()  # somebody else's question begins a look, in a thread
    assert has_begun.wait(30)
    log = open_log(service.settings)
    publish(service.settings, log, plan_publish(service.settings, log, RULE.format(name="second")), "me")
    log.close()
    rule_cache.look_again()
    may_look.set()
    assert is_loading.wait(30)
    found: list[LoadedRules] = []
    asks = threading.Thread(target=lambda: found.append(rule_cache.get()))
    asks.start()
    may_load.set()
    asks.join()
    assert found[0].rules.keys() == {"first", "second"}
    rule_cache.close()
    service.close()
