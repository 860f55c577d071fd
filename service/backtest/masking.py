"""A backtest for those who may not see marked fields, and for files that are passed on: its examples quote alerts and
events.
"""

from __future__ import annotations

from dataclasses import replace

from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.run import Backtest, Example
from samovar.service.masking.fields import HIDDEN, Masks, names_values

NOTE = "marked values are hidden"


def masked_backtest(masks: Masks, found: Backtest) -> Backtest:
    """The same, with examples as who asks may see them."""
    if not masks.is_on:
        return found
    results = []
    for result in found.rules:
        rule = result.rule
        # What is gone was found by the service's rule, of whose output this one tells nothing.
        examples = {
            kind: tuple(_masked(masks, each, None if kind == "gone" else rule) for each in some)
            for kind, some in result.examples.items()
        }
        shown = replace(rule, text=HIDDEN) if names_values(masks.lineage, rule.text) else rule
        results.append(replace(result, rule=shown, examples=examples))
    return replace(found, rules=tuple(results), notes=(*found.notes, NOTE))


def _masked(masks: Masks, example: Example, rule: Rule | None) -> Example:
    events = tuple(
        replace(each, value=None if each.value is None else masks.raw(each.topic, {"value": each.value})["value"])
        for each in example.events
    )
    return replace(example, match=masks.alert(example.match, rule), events=events)
