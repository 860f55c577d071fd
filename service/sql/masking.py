"""Tables for those who may not see marked fields: values are hidden where they are read, before any SQL sees them.

So whatever a query computes, it computes of pseudonyms: grouping and joining by a marked field go as ever, and nothing
that is derived can tell more. A marked field that is a number is text here. What was computed from marked values, in an
alert or in a published view, is hidden whole, as elsewhere: samovar.service.masking.fields.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from samovar.changelog.log import Log, Records
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.source import Condition
from samovar.common.errors import Refused
from samovar.patterns.syntax.tree import Rule
from samovar.service.auth.tokens import load_tokens
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import HIDDEN, Lineage, Masks
from samovar.service.masking.lineage import Flow
from samovar.service.spark.frames.rules import json_of, parsed_rule, published_texts
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.stores import site_of
from samovar.service.views.files import table_name
from samovar.service.views.flows import flow_of_source, flows_of_view
from samovar.service.views.store import ViewManifest

TEXT = pa.string()
ALERT = ("id", "_key", "key", "message", "emit")  # what an alert has of its events, besides where they are
MOST_ROWS = 200_000  # of a view, that are put in an order that tells nothing


@dataclass(frozen=True, kw_only=True)
class RuleVersions:
    """The rules that alerts may be of, by version. It travels to executors."""

    rules: Mapping[str, Rule]
    by_name: Mapping[str, Rule]

    @staticmethod
    def read(settings: ServiceFile, log: Log) -> tuple[RuleVersions, bool]:
        """And whether all that ever ran are known."""
        texts, is_whole = published_texts(site_of(with_published_rules(settings, log), log))
        rules = {version: rule for version, text in texts.items() if (rule := parsed_rule(text)) is not None}
        return RuleVersions(rules=rules, by_name={rule.id: rule for rule in rules.values()}), is_whole


@dataclass(frozen=True, kw_only=True)
class TableMask:
    """How the rows of one table are shown: by columns, and those of alerts by their rules."""

    masks: Masks
    flows: Mapping[str, Flow]  # by column, of those that are not clear
    rules: RuleVersions
    is_alerts: bool = False

    def schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([self._field(each) for each in schema])

    def _field(self, each: pa.Field) -> pa.Field:
        if each.name not in self.flows or self._keeps_type(each):
            return each
        is_list = pa.types.is_list(each.type) and self.flows[each.name] is Flow.OWN
        return pa.field(each.name, pa.list_(TEXT) if is_list else TEXT)

    def _keeps_type(self, each: pa.Field) -> bool:
        return self.is_alerts and each.name in ALERT

    def needs(self, names: Sequence[str]) -> list[str]:
        """The columns that must be read so that these can be shown."""
        return [*names, *(("version", "key") if self.is_alerts and any(name in ALERT for name in names) else ())]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        shown = self._alerts(batch) if self.is_alerts else {}
        columns = [
            shown[each.name] if each.name in shown else self._masked(each.name, column)
            for each, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema))

    def _masked(self, name: str, column: pa.Array) -> pa.Array:
        flow = self.flows.get(name, Flow.CLEAR)
        if flow is Flow.CLEAR:
            return column
        if flow is Flow.COMPUTED:
            return pa.array([HIDDEN] * len(column), TEXT)
        if name == "alert":  # of a label: as alerts call it
            return pa.array([None if id is None else self.masks.alert_id(id, None) for id in column.to_pylist()], TEXT)
        if pa.types.is_nested(column.type):
            values = [self.masks.value(flow, value) for value in column.to_pylist()]
            is_list = pa.types.is_list(column.type)
            return pa.array(values, pa.list_(TEXT) if is_list else TEXT)
        coded = pc.dictionary_encode(column)
        known = pa.array([self.masks.alias(value) for value in coded.dictionary.to_pylist()], TEXT)
        return known.take(coded.indices)

    def _alerts(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """An alert's id, key, message and emit, as pages show them."""
        names = [name for name in ALERT if name in batch.schema.names]
        if not names:
            return {}
        kinds = {name: batch.schema.field(name).type for name in names}
        made: dict[str, list[Any]] = {name: [] for name in names}
        for row in batch.select([*names, *({"version", "key"} - {*names})]).to_pylist():
            rule = self.rules.rules.get(row["version"])
            is_struct = "emit" in kinds and pa.types.is_struct(kinds["emit"])
            emit = row.get("emit") if is_struct or row.get("emit") is None else json.loads(row["emit"])
            alert = {"key": dict(row["key"] or ()), "emit": emit or {}, "message": row.get("message")}
            shown = self.masks.alert(alert, rule)
            told = {
                "id": None if row.get("id") is None else self.masks.alert_id(row["id"], None),
                "_key": None if row.get("_key") is None else self.masks.key_text(row["_key"], rule),
                "key": list(shown["key"].items()),
                "message": shown["message"],
                "emit": self._emit(kinds, emit, shown["emit"], is_struct=is_struct),
            }
            for name in names:
                made[name].append(told[name])
        return {name: pa.array(values, kinds[name]) for name, values in made.items()}

    @staticmethod
    def _emit(kinds: Mapping[str, pa.DataType], emit: Any, shown: Mapping[str, Any], *, is_struct: bool) -> Any:
        """As JSON; of one rule, as its fields, of which those that are numbers and hidden are null."""
        if emit is None or not is_struct:
            return None if emit is None else json_of(shown)
        kind = kinds["emit"]
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return {each.name: _fitting(shown.get(each.name), each.type) for each in fields}

    def rows_of_view(self, dataset: ds.Dataset, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """A file has its rows in the order of its key, which would tell something of what is hidden: so all of them are
        put in an order of their own, the same each time.
        """
        if dataset.count_rows() > MOST_ROWS:
            what = f"a view with marked columns has more than {MOST_ROWS:,} rows, which are put in another order here"
            raise Refused("sql-query", what, "Who may see marked fields reads it with `--pii`.")
        table = dataset.to_table(columns=list(names)).combine_chunks()
        places = [self.masks.pseudonym(json_of(list(map(str, row.values()))), "row") for row in table.to_pylist()]
        ordered = table.take(sorted(range(len(places)), key=places.__getitem__))
        yield from map(self, ordered.to_batches())


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """A value that its column can have: in one of numbers there is no pseudonym."""
    if pa.types.is_list(kind):
        return value if isinstance(value, list) else None
    if kind == TEXT:
        return value
    return None if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class MaskedFrame:
    """A frame whose rows are masked as they are read. It travels to executors as the frame does."""

    frame: Any
    mask: TableMask
    parts: tuple[Any, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.mask.schema(self.frame.schema)

    @property
    def reads_headers(self) -> bool:
        return bool(self.frame.reads_headers)

    @property
    def _pinned(self) -> Any:
        return replace(self.frame, parts=self.parts)

    def choosing(self, names: Sequence[str]) -> MaskedFrame:
        has_choice = hasattr(self.frame, "choosing")
        return replace(self, frame=self.frame.choosing(self.mask.needs(names))) if has_choice else self

    def narrowed(self, conditions: Sequence[Condition]) -> MaskedFrame:
        found = self._pinned.narrowed([each for each in conditions if each.column not in self.mask.flows])
        return replace(self, frame=found, parts=tuple(found.parts))

    def ranges(self, log: Log) -> Sequence[Range]:
        found: Sequence[Range] = self._pinned.ranges(log)
        return found

    def columns(self) -> Any:
        return self.frame.columns()

    def batches(self, records: Records, columns: Any) -> Iterator[pa.RecordBatch]:
        return map(self.mask, self.frame.batches(records, columns))

    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        return map(self.mask, self._pinned.read(part))

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        return map(self.mask, self._pinned.read_fed(feed))


@dataclass
class TableMasks:
    """What one who asks may see of the tables of a service."""

    settings: ServiceFile
    log: Log
    sees_all: bool
    lineage: Lineage = field(init=False)

    def __post_init__(self) -> None:
        self.lineage = Lineage(self.settings)

    @property
    def is_on(self) -> bool:
        return not self.sees_all and bool(self.lineage.any)

    @cached_property
    def _masks(self) -> Masks:
        secret = load_tokens(self.log, self.settings.service).mask_secret
        return Masks(self.lineage, secret or secrets.token_bytes(32))

    @cached_property
    def _rules(self) -> tuple[RuleVersions, bool]:
        return RuleVersions.read(self.settings, self.log)

    def now(self) -> Sequence[Rule]:
        return list(self._rules[0].rules.values())

    def versions_of(self, table: str) -> list[Rule | None]:
        rules, is_whole = self._rules
        found = [rule for rule in rules.rules.values() if f"alerts_{table_name(rule.id)}" == table]
        return [*found, *([] if is_whole else [None])]

    def of_table(self, name: str, columns: Sequence[str]) -> TableMask | None:
        """None where all of it may be seen."""
        if not self.is_on:
            return None
        is_alerts = name in ("alerts", "sessions") or name.startswith("alerts_")
        flows = {column: flow_of_source(self, name, column) for column in columns}
        return self._mask(flows, is_alerts=is_alerts)

    def of_view(self, manifest: ViewManifest) -> TableMask | None:
        return self._mask(flows_of_view(self, manifest)) if self.is_on else None

    def _mask(self, flows: Mapping[str, Flow], *, is_alerts: bool = False) -> TableMask | None:
        hidden = {column: flow for column, flow in flows.items() if flow is not Flow.CLEAR}
        rules = self._rules[0]
        return TableMask(masks=self._masks, flows=hidden, rules=rules, is_alerts=is_alerts) if hidden else None
