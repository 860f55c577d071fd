"""Which key somebody asks for: by its text, or by its pseudonym.

Who may not see a marked field may not name its values either: an answer that depends on whether a value is there tells
what it is. For them a text is compared only with keys that hold nothing marked. Keys that do are asked for by their
pseudonyms, and what a pseudonym stands for is compared only with what is marked. Pseudonyms that were given out are
remembered; others are looked for among the keys of alerts and the keys that have state here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samovar.service.alerts.query import Search
from samovar.service.masking.fields import Masks, is_alias, not_compared
from samovar.service.masking.lineage import Flow
from samovar.service.query.context import QueryContext
from samovar.service.query.local_state import keys_here

if TYPE_CHECKING:
    from samovar.service.query.rule_cache import LoadedRules

LOOKED_THROUGH = 20_000  # keys that have state


@dataclass(frozen=True, kw_only=True)
class KeyLookup:
    """A key that somebody asks for, and what it may be compared with: `marked` keys and fields, those that are not, or
    (None) all. `clear` are the rules, and `clear_versions` the versions of rules, whose keys are not marked.
    """

    asked: str
    text: str
    marked: bool | None = None
    clear: frozenset[str] = frozenset()
    clear_versions: tuple[str, ...] = ()
    no_key_is_marked: bool = False

    def is_for(self, rule: str) -> bool:
        """Whether it may be compared with a rule's keys."""
        return self.marked is None or (rule in self.clear) is not self.marked

    def search(self, rules: Sequence[str], limit: int) -> Search:
        """For the alerts of it."""
        return Search(rules=rules, key=self.text, limit=limit, versions=self.versions, but_versions=self.but_versions)

    @property
    def versions(self) -> tuple[str, ...] | None:
        return self.clear_versions if self.marked is False else None

    @property
    def but_versions(self) -> tuple[str, ...]:
        return self.clear_versions if self.marked else ()

    @property
    def is_known(self) -> bool:
        """Whether it is known which key is meant; of a pseudonym another node may know."""
        return self.text != self.asked or not is_alias(self.asked)


def lookup(context: QueryContext, masks: Masks, text: str, rule: str | None = None) -> KeyLookup:
    """What a text means to who asks; refused where it could only be compared with what they may not see."""
    real = real_key(context, masks, text) if is_alias(text) and context.lineage.any else text
    if not masks.is_on:
        return KeyLookup(asked=text, text=real)
    loaded = context.rule_cache.get()
    clear = frozenset(name for name, each in loaded.rules.items() if context.lineage.has_clear_key(each))
    if is_alias(text):
        return KeyLookup(
            asked=text, text=real, marked=True, clear=clear, clear_versions=clear_versions(context, loaded)
        )
    hidden = [] if clear else list(loaded.rules.values())
    if rule is not None and rule in loaded.rules and rule not in clear:
        hidden = [loaded.rules[rule]]
    if hidden:
        keys = (context.lineage.of(each).key for each in hidden)
        fields = sorted({name for key in keys for name, flow in key.items() if flow is not Flow.CLEAR})
        raise not_compared(fields, "looking for a value of it")
    return KeyLookup(
        asked=text,
        text=text,
        marked=False,
        clear=clear,
        clear_versions=clear_versions(context, loaded),
        no_key_is_marked=not marked_keys(context),
    )


def marked_keys(context: QueryContext) -> bool:
    """Whether any key, of a rule or of a stream, holds something marked."""
    lineage, streams = context.lineage, context.settings.streams
    if any(lineage.is_marked_in(name, stream.key) for name, stream in streams.items()):
        return True
    return not all(map(lineage.has_clear_key, context.rule_cache.get().rules.values()))


def clear_versions(context: QueryContext, loaded: LoadedRules) -> tuple[str, ...]:
    """All versions of rules that are known, and whose keys hold nothing marked."""
    found = [loaded.version(name) for name, rule in loaded.rules.items() if context.lineage.has_clear_key(rule)]
    registry = loaded.registry
    for entry in (
        () if registry is None else (entry for own in registry.entries for entry in registry.history(own.name))
    ):
        rule = loaded.of_version(entry.name, entry.version)
        if rule is not None and context.lineage.has_clear_key(rule):
            found.append(entry.version)
    return tuple(dict.fromkeys(version for version in found if version is not None))


def real_key(context: QueryContext, masks: Masks, alias: str) -> str:
    """The key that a pseudonym stands for; where none is known, the pseudonym itself, which is not a key."""
    known = context.aliases.get(alias)
    if known is not None:
        return known
    context.aliases.remember(masks, (str(key) for (key,) in context.index.ask("SELECT DISTINCT key FROM alert")))
    site = context.rule_cache.get().site
    if context.aliases.get(alias) is None and site is not None:
        tasks = [(here.stage, partition) for here in site.stages() for partition in range(here.partitions)]
        found = keys_here(context, tasks, None, LOOKED_THROUGH)
        context.aliases.remember(masks, (each["key_text"] for each in found))
    return context.aliases.get(alias) or alias
