"""Rules, lists and views for those who may not see marked fields.

A rule's text that names values of a marked field, and a list of such values, hold what the field holds. What is in the
columns of a view samovar.service.views.flows says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from samovar.common.errors import Refused
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts.query import versions_of
from samovar.service.config.models import ServiceFile
from samovar.service.http.request import RequestContext
from samovar.service.http.state import AppState
from samovar.service.masking.fields import HIDDEN, Lineage, names_values
from samovar.service.masking.lineage import Flow
from samovar.service.topology.ruleset import lists_of
from samovar.service.views import flows
from samovar.service.views.files import table_name
from samovar.service.views.store import ViewManifest

# ---------------------------------------------------------------- rules and lists


def known_lists(app_state: AppState) -> dict[str, bool]:
    """The lists that rules of now or before have, and whether none of them looks for a marked field in it."""
    loaded = app_state.rule_cache.get()
    found: dict[str, bool] = {}
    rules, unread = list(loaded.rules.values()), list[str]()
    registry = loaded.registry
    for each in () if registry is None else (each for own in registry.entries for each in registry.history(own.name)):
        rule = load_text(each.text).rule
        rules += [] if rule is None else [rule]
        unread += [each.text] if rule is None else []
    for rule in rules:
        for name in rule.lists:
            found[name] = found.get(name, True) and not app_state.lineage.of(rule).looks_up
    return {name: is_clear and not any(f"${name}" in text for text in unread) for name, is_clear in found.items()}


def hides_list(context: RequestContext, name: str) -> bool:
    """Whether a list may hold marked values: one that no rule has is not known to be clear."""
    return context.masks.is_on and not known_lists(context.app_state).get(name, False)


def shown_item(context: RequestContext, name: str, item: Any) -> Any:
    """An item of a list that is hidden. Those who put items on lists learn no pseudonym that is used elsewhere."""
    return context.masks.pseudonym(item, f"list {name}")


def given_lists(context: RequestContext, lists: Mapping[str, Any]) -> dict[str, Any]:
    """The lists that a rule's text may be read with: in place of one that is hidden, what the text itself declares."""
    known = known_lists(context.app_state) if context.masks.is_on else dict.fromkeys(lists, True)
    return {name: items for name, items in lists.items() if known.get(name, False)}


def hidden_params(context: RequestContext, params: Mapping[str, Any]) -> frozenset[str]:
    """Parameters whose values a rule compares with a marked field."""
    if not context.masks.is_on:
        return frozenset()
    rules, lineage = context.app_state.rule_cache.get().rules.values(), context.app_state.lineage
    quotes = {value for rule in rules for value in lineage.of(rule).quotes}
    return frozenset(name for name, value in params.items() if value in quotes)


def shown_params(context: RequestContext, params: Mapping[str, Any]) -> dict[str, Any]:
    hidden = hidden_params(context, params)
    return {name: HIDDEN if name in hidden else value for name, value in params.items()}


def refuse_hidden(context: RequestContext, rule: Rule) -> None:
    """Refuses a rule that would be run with values that are hidden from who wrote it: whatever it compares them with,
    what it finds tells which they are.
    """
    if not context.masks.is_on:
        return
    site = context.app_state.rule_cache.get().site
    settings = context.settings if site is None else site.settings
    known, params = known_lists(context.app_state), hidden_params(context, settings.params)
    hidden = [name for name in rule.lists if not known.get(name, name not in lists_of(settings))]
    hidden += [name for name in rule.params if name in params]
    if hidden:
        names = ", ".join(f"`${name}`" for name in hidden)
        what = f"{names}: values that are marked pii, and what the rule finds would tell which"
        hint = "Ask somebody with the role operator, or declare a list or parameter of another name in the rule."
        raise Refused("pii-comparison", what, hint)


def hides_text(context: RequestContext, text: str) -> bool:
    """Whether a rule's text names values of marked fields, or nobody can read what it names."""
    return context.masks.is_on and names_values(context.app_state.lineage, text)


def shown_text(context: RequestContext, text: str) -> str:
    return HIDDEN if hides_text(context, text) else text


# ---------------------------------------------------------------- columns of views


@dataclass(frozen=True)
class ServedRules:
    """The rules that this process knows of, versions of before included."""

    app_state: AppState

    @property
    def settings(self) -> ServiceFile:
        return self.app_state.settings

    @property
    def lineage(self) -> Lineage:
        return self.app_state.lineage

    def now(self) -> Iterable[Rule]:
        return self.app_state.rule_cache.get().rules.values()

    def versions_of(self, table: str) -> list[Rule | None]:
        loaded = self.app_state.rule_cache.get()
        books = () if loaded.registry is None else loaded.registry.entries
        names = {*loaded.rules, *(each.name for each in books)}
        found: list[Rule | None] = []
        for name in sorted(name for name in names if f"alerts_{table_name(name)}" == table):
            found += [loaded.rules[name]] if name in loaded.rules else []
            entries = () if loaded.registry is None else loaded.registry.history(name)
            versions = {*versions_of(self.app_state.index, name), *(each.version for each in entries)}
            found += [loaded.of_version(name, version) for version in sorted(versions)]
        return found


def flows_of_view(app_state: AppState, manifest: ViewManifest) -> dict[str, Flow]:
    """By column, what is in it."""
    return flows.flows_of_view(ServedRules(app_state), manifest)
