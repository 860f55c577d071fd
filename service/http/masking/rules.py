"""Rules and lists for those who may not see marked fields: a text that names values of one, and a list of such values,
hold what the field holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from samovar.common.errors import Refused
from samovar.patterns.rulefile.rule_file import load_text
from samovar.service.masking.fields import HIDDEN, Masks, names_values
from samovar.service.topology.ruleset import lists_of

if TYPE_CHECKING:
    from samovar.patterns.syntax.tree import Rule
    from samovar.service.http.state import AppState


def clear_lists(app_state: AppState) -> frozenset[str]:
    """Lists that no rule of now or before looks for a marked field in. One that no rule has is not known to be so."""
    return frozenset(name for name, is_clear in known_lists(app_state).items() if is_clear)


def known_lists(app_state: AppState) -> dict[str, bool]:
    """The lists that rules of now or before have, and whether none of them looks for a marked field in it."""
    loaded = app_state.rule_cache.get()
    found: dict[str, bool] = {}
    rules, unread = list(loaded.rules.values()), list[str]()
    book = loaded.book
    for each in () if book is None else (each for own in book.entries for each in book.history(own.name)):
        rule = load_text(each.text).rule
        rules += [] if rule is None else [rule]
        unread += [each.text] if rule is None else []
    for rule in rules:
        for name in rule.lists:
            found[name] = found.get(name, True) and not app_state.lineage.of(rule).looks_up
    return {name: is_clear and not any(f"${name}" in text for text in unread) for name, is_clear in found.items()}


def hides_list(app_state: AppState, masks: Masks, name: str) -> bool:
    return masks.is_on and name not in clear_lists(app_state)


def shown_item(masks: Masks, name: str, item: Any) -> Any:
    """An item of a list that is hidden. Those who put items on lists learn no pseudonym that is used elsewhere."""
    return masks.pseudonym(item, f"list {name}")


def given_lists(app_state: AppState, masks: Masks, lists: Mapping[str, Any]) -> dict[str, Any]:
    """The lists that a rule's text may be read with: in place of one that is hidden, what the text itself declares."""
    if not masks.is_on:
        return dict(lists)
    clear = clear_lists(app_state)
    return {name: items for name, items in lists.items() if name in clear}


def given_params(app_state: AppState, masks: Masks, params: Mapping[str, Any]) -> dict[str, Any]:
    """The same for parameters."""
    hidden = hidden_params(app_state, params) if masks.is_on else ()
    return {name: value for name, value in params.items() if name not in hidden}


def shown_params(app_state: AppState, masks: Masks, params: Mapping[str, Any]) -> dict[str, Any]:
    hidden = hidden_params(app_state, params) if masks.is_on else ()
    return {name: HIDDEN if name in hidden else value for name, value in params.items()}


def hidden_params(app_state: AppState, params: Mapping[str, Any]) -> frozenset[str]:
    """Parameters whose values a rule compares with a marked field."""
    quotes = {
        value for rule in app_state.rule_cache.get().rules.values() for value in app_state.lineage.of(rule).quotes
    }
    return frozenset(name for name, value in params.items() if value in quotes)


def refuse_hidden(app_state: AppState, masks: Masks, rule: Rule) -> None:
    """Refuse a rule that would be run with values that are hidden from who wrote it: whatever it compares them with,
    what it finds tells which they are.
    """
    if not masks.is_on:
        return
    site = app_state.rule_cache.get().site
    settings = app_state.settings if site is None else site.settings
    known = known_lists(app_state)
    hidden = [name for name in rule.lists if not known.get(name, name not in lists_of(settings))]
    hidden += [name for name in rule.params if name in hidden_params(app_state, settings.params)]
    if hidden:
        raise Refused(
            "pii-comparison",
            f"{', '.join(f'`${name}`' for name in hidden)}: values that are marked pii, and what the rule finds would"
            " tell which",
            "Ask somebody with the role operator, or declare a list or parameter of another name in the rule.",
        )


def shown_text(app_state: AppState, masks: Masks, text: str) -> str:
    """A rule's text; hidden where it names values of marked fields, and where nobody can read what it names."""
    return HIDDEN if hides_text(app_state, masks, text) else text


def hides_text(app_state: AppState, masks: Masks, text: str) -> bool:
    return masks.is_on and names_values(app_state.lineage, text)


def shown_rule(masks: Masks, rule: Rule) -> Rule:
    """A rule as its text has it, with no list from elsewhere."""
    return rule if not masks.is_on else load_text(rule.text, params=rule.params).rule or rule
