"""Several rule files at once, with parameters and lists from outside, for all who run rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.common.suggest import did_you_mean
from samovar.patterns.rulefile.rule_file import MAX_FILE_BYTES, LoadedRuleFile, load_paths, load_text
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, render
from samovar.patterns.syntax.tree import Rule


@dataclass(frozen=True)
class RuleSet:
    """The rules that loaded, in the order of the files, and all findings."""

    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def unreadable(self) -> bool:
        return any(finding.id == "unreadable-file" for finding in self.findings)


class SettingError(ValueError):
    """A parameter or list that no rule has, or a folder without rules."""


def load_set(
    paths: Iterable[str | Path],
    *,
    params: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
    schema: Schema | None = None,
    known_fields: Collection[str] | None = None,
) -> RuleSet:
    """The rules of files and folders. A parameter or list reaches every rule that declares it; one must."""
    paths = list(paths)
    options: dict[str, Any] = {"schema": schema, "known_fields": known_fields}
    loaded = load_paths(paths, **options)
    if not loaded:
        raise SettingError(f"no rule files (*.yml, *.yaml) in {', '.join(map(str, paths)) or 'nothing'}")
    loaded = [_with_settings(one, params or {}, lists or {}, **options) for one in loaded]
    rules = [one.rule for one in loaded if one.rule is not None]
    if len(rules) == len(loaded):
        _refuse_unknown("parameter", params or {}, [name for rule in rules for name in rule.params])
        _refuse_unknown("list", lists or {}, [name for rule in rules for name in rule.lists])
    return RuleSet(tuple(rules), tuple(finding for one in loaded for finding in one.findings))


def load_given(
    text: str, path: str, params: Mapping[str, Any], lists: Mapping[str, Any], schema: Schema | None = None
) -> LoadedRuleFile:
    """A rule from its text, with those of the parameters and lists that it declares."""
    return _with_settings(load_text(text, path, schema=schema), params, lists, schema=schema)


def _with_settings(
    one: LoadedRuleFile, params: Mapping[str, Any], lists: Mapping[str, Any], **options: Any
) -> LoadedRuleFile:
    if one.rule is None:
        return one
    own_params = {name: value for name, value in params.items() if name in one.rule.params}
    own_lists = {name: value for name, value in lists.items() if name in one.rule.lists}
    if not (own_params or own_lists):
        return one
    return load_text(one.rule.text, one.rule.path, params=own_params, lists=own_lists, **options)


def _refuse_unknown(what: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            tip = did_you_mean(name, sorted(set(known)))
            raise SettingError(f"no rule has a {what} `{name}`" + (f"; {tip}" if tip else ""))


def rendered(findings: Iterable[Finding], known: Mapping[str, str] | None = None) -> str:
    """All findings as text, each with its line and caret. `known` are texts that no file has, by their names."""
    texts: dict[str, str] = dict(known or {})
    shown = []
    for finding in findings:
        if finding.path not in texts:
            texts[finding.path] = _text_of(finding.path)
        shown.append(render(finding, texts[finding.path]))
    return "\n".join(shown)


def _text_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
