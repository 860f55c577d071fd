"""View files: Spark SQL over what a service holds, in YAML.

    view: alerts-by-hour
    title: Alerts per rule and hour
    sql: |
      select day, rule, date_trunc('hour', at) as hour, count(*) as alerts from alerts group by all
    key: [rule, hour]
    partitioning: day
    refresh: incremental
    partition_of: {alerts: day}      # which partition of the view a row of a source belongs to
    format: delta                    # one table for all its versions, and not a folder of Parquet for each

All errors of all files are told at once, each with its line; views whose files are right are there all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.syntax.findings import Finding, Report, render
from samovar.patterns.syntax.positions import Fragment, whole
from samovar.patterns.syntax.yaml import List, Node, Text, YamlMap, read
from samovar.service.config.models import ServiceFile

NAME = re.compile(r"[a-z][a-z0-9-]{0,99}\Z")
KEYS = ("view", "title", "sql", "key", "partitioning", "refresh", "partition_of", "serve", "format")
REFRESHES = ("full", "incremental")
FORMATS = ("parquet", "delta")


@dataclass(frozen=True, kw_only=True)
class View:
    """A view as its file says it."""

    name: str
    title: str
    sql: str
    key: tuple[str, ...]
    partitioning: tuple[str, ...]
    refresh: str
    partition_of: Mapping[str, str]
    path: Path
    fragment: Fragment = field(compare=False, repr=False)
    serve: bool = False
    format: str = "parquet"

    @property
    def table(self) -> str:
        """Its name in SQL.

        >>> View("alerts-by-hour", "", "", (), (), "full", {}, Path(), whole("")).table
        'alerts_by_hour'
        """
        return table_name(self.name)

    @property
    def digest(self) -> str:
        """Another one when anything changes that its rows depend on."""
        parts: tuple[object, ...] = (
            self.sql.strip(),
            self.key,
            self.partitioning,
            self.refresh,
            sorted(self.partition_of.items()),
        )
        parts += ("serve",) if self.serve else ()
        parts += ("delta",) if self.format == "delta" else ()
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class BadView(Refused):
    """A view with an error; as text, with its line and caret."""

    def __str__(self) -> str:
        return f"{self.detail}\n{self.code}: {self.what}\n  {self.hint}"


def table_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def load_views(settings: ServiceFile) -> tuple[list[View], BadView | None]:
    """All views of a service, by name, and what is wrong with files that hold none."""
    views: list[View] = []
    shown: list[str] = []
    paths = settings.views.files
    found = [[*path.glob("*.yml"), *path.glob("*.yaml")] if path.is_dir() else [path] for path in paths]
    for path in (path for some in found for path in sorted(some) if path.exists()):
        report = Report(str(path))
        try:
            text = _text_of(path)
        except Refused as refused:
            shown.append(refused.what)
            continue
        file = whole(text)
        node, view = read(file, report), None
        if isinstance(node, YamlMap) and not report.failed:
            entries = {key.text: (key, value) for key, value in node.entries}
            view = _ViewReader(
                path=path, report=report, node=node, entries=entries, format=settings.views.format
            ).view()
        elif not report.failed:
            report.error("view-file", "a view is a map", file.locate(0, 1), expected="view: NAME, and sql: |")
        if view is not None and any(view.table == other.table for other in views):
            report.error("view-file", f"another file has a view `{view.name}` too", view.fragment.locate(0, 0))
        shown += [render(finding, text) for finding in report.findings()]
        views += [view] if view is not None and not report.failed else []
    count = "an error" if len(shown) == 1 else f"{len(shown)} errors"
    bad = BadView("view-file", f"the views have {count}", "Fix the lines above.", "\n".join(shown)) if shown else None
    return sorted(views, key=lambda view: view.name), bad


def view_named(settings: ServiceFile, name: str) -> View:
    """A view by its name. Where there is none, a file that cannot be read may be its."""
    views, bad = load_views(settings)
    for view in views:
        if view.name == name:
            return view
    if bad is not None:
        raise bad
    known = [view.name for view in views]
    folders = ", ".join(map(str, settings.views.files))
    raise Refused(
        "unknown-view",
        f"there is no view `{name}` in {folders}",
        did_you_mean(name, known) or (f"Views are {', '.join(known)}." if known else "Put a file *.yml there."),
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Refused("unreadable-file", f"cannot read {path}: {reason}", "A view is a YAML file in UTF-8.") from error


@dataclass(kw_only=True)
class _ViewReader:
    """A file on its way to a view."""

    path: Path
    report: Report
    node: YamlMap
    entries: Mapping[str, tuple[Text, Node]]
    format: str  # where the file names none

    def view(self) -> View | None:
        for key, _ in self.entries.values():
            if key.text not in KEYS:
                hint = did_you_mean(key.text, KEYS)
                self._error(f"a view has no `{key.text}`", key, expected=", ".join(KEYS), hint=hint)
        name, sql, refresh = self._text("view"), self._text("sql"), self._text("refresh", "full")
        partitioning, keys, partition_of = self._names("partitioning"), self._names("key"), self._map("partition_of")
        if name is not None and not NAME.match(name):
            self._error(f"`{name}` cannot be a view's name", self.entries["view"][1], expected="a-z, 0-9 and `-`")
        if sql is not None and not sql.strip():
            self._error("`sql` is empty", self.entries["sql"][1], expected="select ... from alerts")
        format = self._text("format", self.format)
        for setting, value, choices in (("refresh", refresh, REFRESHES), ("format", format, FORMATS)):
            if value is not None and value not in choices:
                hint, where = did_you_mean(value, choices), self.entries[setting][1]
                what = f"`{value}` is no way to refresh" if setting == "refresh" else f"there is no format `{value}`"
                self._error(what, where, expected=" or ".join(choices), hint=hint)
        if refresh == "incremental" and (len(partitioning) != 1 or not partition_of):
            self._error(
                "an incremental view needs one column in `partitioning`, and `partition_of`",
                self.entries["refresh"][1],
                expected="partitioning: day and partition_of: {alerts: day}",
                hint="`partition_of` says, for each source whose new rows are followed, which partition a row is of",
            )
        if refresh == "full" and partition_of:
            self._error("`partition_of` is for `refresh: incremental`", self.entries["partition_of"][0])
        serve = self._serve(keys, partitioning if refresh == "incremental" else ())
        if self.report.failed or name is None or sql is None or refresh is None or format is None:
            return None
        node = self.entries["sql"][1]
        assert isinstance(node, Text)
        title = self._text("title", name) or name
        return View(
            name=name,
            title=title,
            sql=sql,
            key=keys,
            partitioning=partitioning,
            refresh=refresh,
            partition_of=partition_of,
            path=self.path,
            fragment=node.fragment,
            serve=serve,
            format=format,
        )

    def _serve(self, key: tuple[str, ...], partitioning: tuple[str, ...]) -> bool:
        """Whether it is read by key. Partitions are made one by one: only with theirs in it is a key in one of them."""
        node = self.entries.get("serve", (None, None))[1]
        if node is None:
            return False
        if not isinstance(node, Text) or not isinstance(node.value, bool):
            self._error("`serve` must be true or false", node)
        elif node.value and (not key or not set(partitioning) <= set(key)):
            wanted = ", ".join(dict.fromkeys((*partitioning, *key))) or "card"
            what = f"which `{partitioning[0]}` must be in" if key else "by which its rows are read"
            self._error(f"a served view needs `key`, {what}", node, expected=f"key: [{wanted}]")
        return isinstance(node, Text) and node.value is True

    def _text(self, name: str, default: str | None = None) -> str | None:
        if name not in self.entries:
            if default is None:
                self.report.error("view-file", f"`{name}` is missing", self.node.span, expected=f"{name}: ...")
            return default
        node = self.entries[name][1]
        if isinstance(node, Text) and isinstance(node.value, str):
            return node.text
        self._error(f"`{name}` must be text", node)
        return default

    def _names(self, name: str) -> tuple[str, ...]:
        if name not in self.entries:
            return ()
        node = self.entries[name][1]
        items = node.items if isinstance(node, List) else (node,)
        if all(isinstance(item, Text) and item.text.strip() for item in items):
            return tuple(item.text for item in items if isinstance(item, Text))
        self._error(f"`{name}` must be a column, or a list of them", node, expected=f"{name}: [a, b]")
        return ()

    def _map(self, name: str) -> dict[str, str]:
        if name not in self.entries:
            return {}
        node = self.entries[name][1]
        if isinstance(node, YamlMap) and all(isinstance(value, Text) for _, value in node.entries):
            return {key.text: value.text for key, value in node.entries if isinstance(value, Text)}
        self._error(f"`{name}` must be a map", node, expected=f"{name}: {{alerts: day}}")
        return {}

    def _error(self, message: str, node: Node, expected: str | None = None, hint: str | None = None) -> None:
        self.report.error("view-file", message, node.span, expected=expected, hint=hint)


def bad_sql(view: View, code: str, message: str, start: int, stop: int, hint: str) -> BadView:
    """An error at a place of the view's SQL, shown in its file. The code is `view-sql` or `view-source`."""
    finding = Finding(
        id=code,
        level="error",
        message=message,
        path=str(view.path),
        span=view.fragment.locate(start, max(start + 1, stop)),
    )
    shown = render(finding, _text_of(view.path))
    what = f"the view {view.name} cannot be made"
    return BadView("view-source" if code == "view-source" else "view-sql", what, hint, shown)
