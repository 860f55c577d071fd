"""Which rules are at work, for a service's status: as its containers tell, else as the rulebook and the folder say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from samovar.changelog.formats.heartbeat import Presence, RuleAtWork
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.service.config.models import ServiceFile
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import with_rulebook
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.tasks.model.plan import RuleText


@dataclass(frozen=True)
class RulesStatus:
    """The rules of a service. `refused` is why a published change is not taken."""

    rules: tuple[RuleAtWork, ...] = ()
    refused: str | None = None

    @property
    def lines(self) -> list[str]:
        """What is worth a word: what was published, what does not simply alert, what is throttled."""
        found = [f"rule {_text(rule)}" for rule in self.rules if rule.number or rule.status != "live" or rule.kept_back]
        return found + ([] if self.refused is None else [f"not taken: {self.refused}"])


def _text(rule: RuleAtWork) -> str:
    number = f" number {rule.number}" if rule.number else ""
    storm = f", throttled: {rule.kept_back:,} alerts kept back" if rule.kept_back else ""
    return f"{rule.rule}{number}, version {rule.version}: {rule.status}{storm}"


def rules_of_service(settings: ServiceFile, log: Log, told: Iterable[Presence]) -> RulesStatus:
    told = list(told)
    refused = next((each.rules_refused for each in told if each.rules_refused), None)
    found = tuple(_together(rule for each in told for rule in each.at_work))
    return RulesStatus(found or tuple(_planned(settings, log)), refused)


def _together(rules: Iterable[RuleAtWork]) -> Iterator[RuleAtWork]:
    """A rule of several containers is one; a storm anywhere is one of the rule."""
    found: dict[tuple[str, str, str], RuleAtWork] = {}
    for rule in rules:
        place = rule.rule, rule.version, rule.status
        known = found.get(place)
        found[place] = rule if known is None else replace(known, kept_back=known.kept_back + rule.kept_back)
    yield from (found[place] for place in sorted(found))


def _status(rule: RuleText) -> str:
    if rule.quarantined is not None:
        return "quarantined"
    return "shadow" if rule.shadow else "live"


def _planned(settings: ServiceFile, log: Log) -> Iterator[RuleAtWork]:
    with suppress(Refused):  # rules with errors are the doctor's to tell
        existing = log.topics(counted_topics(settings))
        plans = rule_plans(with_rulebook(settings, log), partitions_of(settings, existing))
        for rule in sorted((rule for plan in plans for rule in plan.rules), key=lambda each: each.id):
            yield RuleAtWork(rule.id, rule.version, rule.number, _status(rule))
