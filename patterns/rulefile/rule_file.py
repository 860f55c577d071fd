"""Rule files: YAML text to a resolved Rule, with every error of the file at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from samovar.patterns.rulefile.sections import RuleReader
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, Report
from samovar.patterns.syntax.positions import whole
from samovar.patterns.syntax.tree import Rule, Span
from samovar.patterns.syntax.yaml import YamlMap, read

MAX_FILE_CHARACTERS = 1_000_000
MAX_FILE_BYTES = 4_000_000
REMEMBERED = 256  # rules, of at most so many characters each
REMEMBERED_CHARACTERS = 50_000

_START = Span(1, 1, 1, 1)


@dataclass(frozen=True)
class LoadedRuleFile:
    """`rule` is None when any finding is an error."""

    rule: Rule | None
    findings: tuple[Finding, ...]


def load_text(
    text: str,
    path: str = "<rule>",
    *,
    params: Mapping[str, Any] | None = None,
    lists: Mapping[str, Any] | None = None,
    schema: Schema | None = None,
    known_fields: Collection[str] | None = None,
) -> LoadedRuleFile:
    """A rule from its text. `params` and `lists` replace the values that the file declares.

    `known_fields` are field paths seen in the data; without a schema they show that a name is a slip. What was read is
    remembered: a service looks at its rules again and again.
    """
    known = frozenset(known_fields) if known_fields is not None else None
    values = repr((params or {}, lists or {}, None if schema is None else schema.types))
    given = _Given(
        text=text, path=path, known=known, values=values, params=params or {}, lists=lists or {}, schema=schema
    )
    return _remembered(given) if len(text) + len(values) <= REMEMBERED_CHARACTERS else _read(given)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """All that a rule is made of; `values` stands for what cannot be compared quickly."""

    text: str
    path: str
    known: frozenset[str] | None
    values: str
    params: Mapping[str, Any] = field(compare=False)
    lists: Mapping[str, Any] = field(compare=False)
    schema: Schema | None = field(compare=False)


def _read(given: _Given) -> LoadedRuleFile:
    text, report = given.text, Report(given.path)
    rule: Rule | None = None
    if len(text) > MAX_FILE_CHARACTERS:
        expected = f"at most {MAX_FILE_CHARACTERS:,}"
        report.error("file-too-large", f"the file has {len(text):,} characters", _START, expected=expected)
    else:
        node = read(whole(text), report)
        if isinstance(node, YamlMap):
            reader = RuleReader(node, report, given.schema, given.known, given.params, given.lists)
            rule = reader.read(given.path, text)
        elif not report.failed:
            expected = "rule: my-rule, then match: |"
            report.error("not-a-rule", "a rule file maps keys to values", _START, expected=expected)
    return LoadedRuleFile(None if report.failed else rule, report.findings())


_remembered = lru_cache(maxsize=REMEMBERED)(_read)


def load_path(path: str | Path, **options: Any) -> LoadedRuleFile:
    """A rule from a file; the options are those of load_text. An unreadable file is a finding."""
    report = Report(str(path))
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data[:MAX_FILE_BYTES].decode("utf-8", "strict" if len(data) <= MAX_FILE_BYTES else "ignore")
    except OSError as fault:
        report.error("unreadable-file", f"cannot read the file: {fault.strerror or fault}", _START)
    except ValueError as fault:
        reason = str(fault)
        if isinstance(fault, UnicodeDecodeError):
            line = fault.object.count(b"\n", 0, fault.start) + 1
            reason = f"byte 0x{fault.object[fault.start]:02x} on line {line}"
        report.error("not-utf-8", f"the file is not UTF-8: {reason}", _START, hint="save it as UTF-8")
    else:
        return load_text(text, str(path), **options)
    return LoadedRuleFile(None, report.findings())


def load_paths(paths: Iterable[str | Path], **options: Any) -> list[LoadedRuleFile]:
    """The rules of files and of folders. Two rules of one id are an error.

    Of a folder: *.yml and *.yaml, all levels, sorted; a `schema.yml` next to the rules is none of them.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        inside = (file for file in path.rglob("*") if file.suffix in (".yml", ".yaml") and file.is_file())
        files += sorted(file for file in inside if file.stem != "schema") if path.is_dir() else [path]
    loaded: list[LoadedRuleFile] = []
    seen: dict[str, str] = {}
    for file in files:
        one = load_path(file, **options)
        if one.rule is not None and one.rule.id in seen:
            node = read(whole(one.rule.text), Report(one.rule.path))
            entries = node.entries if isinstance(node, YamlMap) else ()
            where = next((value.span for key, value in entries if key.text == "rule"), _START)
            text = f"the rule `{one.rule.id}` stands in {seen[one.rule.id]} too"
            clash = Finding(
                id="duplicate-rule",
                level="error",
                message=text,
                path=str(file),
                span=where,
                expected=None,
                hint="give one of them another id",
            )
            one = LoadedRuleFile(None, (*one.findings, clash))
        elif one.rule is not None:
            seen[one.rule.id] = str(file)
        loaded.append(one)
    return loaded
