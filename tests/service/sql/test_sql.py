"""`samovar sql` on one machine: what a query sees, and that it can reach nothing else."""

from __future__ import annotations

import csv
import io
import json
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.cli import main
from samovar.service.spark.frames.frame import FrameRange
from samovar.service.sql.local import LocalEngine, QueryCancelled, statements_in
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.output import rows_of
from samovar.service.sql.tables import Catalog, ScanWatch, TableDataset, narrowed
from tests.support.small_service import START, Service, make, many, purchase, run


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    made = make(tmp_path_factory.mktemp("sql") / "s")
    made.process(many(300))
    made.settle()
    return made


def sql(service: Service, query: str, *options: object, code: int = 0) -> str:
    done = run("sql", service.config, query, *options)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def objects(service: Service, query: str, *options: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sql(service, query, "--json", *options).splitlines()]


def local(service: Service, log: Any) -> LocalEngine:
    return LocalEngine(settings=service.settings, log=log, masks=TableMasks(service.settings, log, sees_all=True))


# ---------------------------------------------------------------- what a query sees


def test_a_query_sees_inputs_alerts_and_states(service: Service) -> None:
    assert objects(service, "select count(*) as n, sum(amount) as total from purchase") == [
        {"n": 300, "total": sum(event["amount"] for event in many(300))}
    ]
    alerts = [json.loads(line)["value"] for line in run("read", service.config, "alerts", "--json").stdout.splitlines()]
    assert {each["id"] for each in objects(service, "select id from alerts")} == {each["id"] for each in alerts}
    testing = objects(service, "select key['card'] as card, day from alerts_testing")
    assert {each["card"] for each in testing} == {a["key"]["card"] for a in alerts if a["rule"] == "testing"}
    assert all(each["day"] == "2026-01-05" for each in testing)
    assert objects(service, "select distinct kind from states order by kind") == [{"kind": "history"}, {"kind": "rule"}]


def test_each_query_sees_what_was_committed_before_it(service: Service, tmp_path: Path) -> None:
    own = make(tmp_path / "s")
    own.produce(many(3))
    with own.log() as log:
        engine = local(own, log)
        (statement,) = statements_in("select count(*) from purchase a, (select count(*) from purchase)", "<query>")
        tables = engine.tables()
        tables.open("purchase")
        own.produce(many(2))
        with engine.run(statement, tables) as rows:
            assert list(rows_of(rows.batches)) == [[3]]  # the ends are those of its beginning, for both scans
        with engine.run(statement) as rows:
            assert list(rows_of(rows.batches)) == [[5]]


def test_a_stream_may_be_joined_with_itself(service: Service) -> None:
    query = (
        "select count(*) as n from purchase a join purchase b on a._offset = b._offset and a._partition = b._partition"
    )
    assert objects(service, query) == [{"n": 300}]


def test_a_name_that_the_query_gives_itself_is_no_table_of_ours(service: Service) -> None:
    assert objects(service, "with alerts as (select 1 as x) select * from alerts") == [{"x": 1}]


def test_names_of_tables_have_no_case(service: Service) -> None:
    assert objects(service, "select count(*) as n from PURCHASE") == [{"n": 300}]


def test_a_column_called_at_needs_no_quotes(service: Service) -> None:
    found = objects(service, "select max(at) as at, max(at at time zone 'UTC') as utc, ' at ' as word from alerts")
    assert found[0]["at"].startswith(found[0]["utc"])
    assert found[0]["word"] == " at "


NUMBERS = st.sampled_from([0, 1, 2, 3, 30, 900])
COLUMNS = st.sampled_from(["card", "country"])
CONDITIONS = st.tuples(
    st.sampled_from(["amount", "_offset", "_partition"]), st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]), NUMBERS
)


@given(by=COLUMNS, conditions=st.lists(CONDITIONS, max_size=3), word=st.sampled_from(["and", "or"]))
def test_results_are_those_of_a_plain_computation(service: Service, by: str, conditions: Any, word: str) -> None:
    where = f" {word} ".join(f"{column} {how} {number}" for column, how, number in conditions) or "true"
    values = "count(*) as n, sum(amount) as total, max(_event_time) as last"
    query = f"select {by}, {values} from purchase where {where} group by 1"
    compare = {
        "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
        "=": lambda a, b: a == b, "<>": lambda a, b: a != b,
    }  # fmt: skip
    wanted: dict[str, tuple[int, float, int]] = defaultdict(lambda: (0, 0.0, 0))
    places: dict[int, int] = defaultdict(int)
    for event in many(300):
        partition = service.partition(event["card"])
        row = {**event, "_partition": partition, "_offset": places[partition]}
        places[partition] += 1
        held = [compare[how](row[column], number) for column, how, number in conditions]
        if not held or (all(held) if word == "and" else any(held)):
            count, total, last = wanted[event[by]]
            wanted[event[by]] = count + 1, total + event["amount"], max(last, event["ts"])
    with service.log() as log:
        (statement,) = statements_in(query, "<query>")
        with local(service, log).run(statement) as rows:
            found = {row[0]: tuple(row[1:]) for row in rows_of(rows.batches)}
    assert found == {key: (count, total, iso_time(last)) for key, (count, total, last) in wanted.items()}


# ---------------------------------------------------------------- how much is read


def scans(service: Service, query: str) -> ScanWatch:
    with service.log() as log:
        engine = local(service, log)
        (statement,) = statements_in(query, "<query>")
        with engine.run(statement) as rows:
            list(rows.batches)
        return engine.watch


def test_only_offsets_that_conditions_leave_are_read(service: Service) -> None:
    on_first = sum(service.partition(event["card"]) == 0 for event in many(300))
    assert scans(service, "select card from purchase").total == 300
    assert scans(service, "select card from purchase where _partition = 0").total == on_first
    assert scans(service, "select card from purchase where _offset >= 10 and _offset < 15").total == 10
    assert scans(service, "select card from purchase where _partition = 0 and _offset in (7)").total <= 8
    assert scans(service, "select card from purchase where _time > now() + interval 1 day").total == 0
    assert (
        scans(service, "select card from purchase where _time > now() - interval 9999 day or amount > 1").total == 300
    )


TABLE = pa.schema(
    [("_partition", pa.int32()), ("_offset", pa.int64()), ("_time", pa.timestamp("us", "UTC")), ("x", pa.int64())]
)


class Clock:
    """A log whose record at offset n is of n * 10 ms."""

    def offset_at(self, at: Any, time_ms: int) -> int:
        return -(-time_ms // 10)


@given(
    st.sampled_from(["_offset", "_time", "_partition"]), st.sampled_from(["<", "<=", ">", ">=", "=="]),
    st.integers(0, 1500), st.booleans(),
)  # fmt: skip
def test_no_row_that_fulfils_a_condition_is_left_out(column: str, how: str, number: int, with_other: bool) -> None:
    parts = [FrameRange(topic="t", partition=each, start=0, end=100) for each in (0, 1)]
    value = pa.scalar(number * 1000, TABLE.field("_time").type) if column == "_time" else pa.scalar(number // 10)
    names = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal"}
    condition = getattr(pc, names[how])(pc.field(column), value)
    condition = condition | (pc.field("x") == 3) if with_other else condition
    rows = pa.table(
        {
            "_partition": [0] * 100 + [1] * 100, "_offset": [*range(100)] * 2,
            "_time": [n * 10_000 for n in range(100)] * 2, "x": [n % 7 for n in range(100)] * 2,
        },
        schema=TABLE,
    )  # fmt: skip
    ranges = narrowed(TABLE, condition, parts, cast("Log", Clock()))
    left = {(part.partition, offset) for part in ranges for offset in range(part.start, part.end)}
    found = rows.filter(condition)
    assert set(zip(found["_partition"].to_pylist(), found["_offset"].to_pylist(), strict=True)) <= left
    if not with_other and column == "_partition" and how == "==":
        assert {partition for partition, _ in left} == {number // 10} & {0, 1}


def test_only_wanted_columns_are_decoded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from samovar.service.spark.frames.events import RecordFrame  # noqa: PLC0415 - to be looked at

    asked: list[set[str]] = []
    choosing = RecordFrame.choosing

    def chosen(frame: RecordFrame, names: Sequence[str]) -> RecordFrame:
        asked.append(set(names))
        return choosing(frame, names)

    monkeypatch.setattr(RecordFrame, "choosing", chosen)
    scans(service, "select sum(amount) from purchase where card <> 'c1'")
    assert asked == [{"card", "amount"}]


def test_a_scan_holds_few_batches_at_once(tmp_path: Path) -> None:
    """However long it is: 400,000 records are read in batches of 10,000 rows at most."""
    service = make(tmp_path / "s")
    for _ in range(4):
        service.produce(many(100_000))
    alive, most, largest = 0, 0, 0

    class Counting(TableDataset):
        def _batches(self, names: Any, condition: Any) -> Iterator[pa.RecordBatch]:
            nonlocal alive, most, largest
            for batch in super()._batches(names, condition):
                alive, largest = alive + 1, max(largest, batch.num_rows)
                most = max(most, alive)
                weakref.finalize(batch, gone)
                yield batch

    def gone() -> None:
        nonlocal alive
        alive -= 1

    with service.log() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr("samovar.service.sql.local.TableDataset", Counting)
        engine = local(service, log)
        (statement,) = statements_in("select card, sum(amount) from purchase group by card", "<query>")
        with engine.run(statement) as rows:
            assert sum(batch.num_rows for batch in rows.batches) == 7
    assert engine.watch.done == 400_000
    assert largest <= 10_000
    assert most <= 8


def test_a_limit_ends_a_scan_early(service: Service) -> None:
    assert scans(service, "select * from purchase limit 1").done < 300


# ---------------------------------------------------------------- nothing else


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')", "select * from '/etc/passwd'", "from read_text('/etc/passwd')",
        "select * from glob('/*')", "from 'https://example.com/x.parquet'", "select * from sqlite_scan('/x.db', 't')",
        "select * from query('from read_text(''/etc/passwd'')')",
    ],
)  # fmt: skip
def test_queries_reach_no_files_and_no_network(service: Service, query: str) -> None:
    said = sql(service, query, code=2)
    assert "sql-query" in said
    assert "root:" not in said


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to '/tmp/samovar-sql-test.csv'", "create table t as select 1",
        "insert into purchase values (1)",
        "attach '/tmp/x.db'", "install httpfs", "load httpfs", "set enable_external_access = true",
        "drop table purchase",
        "pragma database_list", "call pragma_version()", "export database '/tmp/x'", "begin", "delete from purchase",
    ],
)  # fmt: skip
def test_only_queries_are_taken(service: Service, query: str, tmp_path: Path) -> None:
    assert "sql-statement" in sql(service, query, code=2) or "sql-query" in sql(service, query, code=2)
    assert not Path("/tmp/samovar-sql-test.csv").exists()


def test_variables_of_this_program_are_no_tables(service: Service) -> None:
    secret = pa.table({"x": [1]})
    with service.log() as log:
        engine = local(service, log)
        (statement,) = statements_in("select * from secret", "<query>")
        with pytest.raises(Refused, match="sql-query"), engine.run(statement):
            pass
    assert secret.num_rows == 1


# ---------------------------------------------------------------- faults


def test_a_fault_is_told_with_its_place(service: Service) -> None:
    said = sql(service, "select card,\n  'é', crad\nfrom purchase", code=2)
    assert said.splitlines() == [
        "<query>:2:8: error: there is no column `crad` [sql-query]",
        "    2 |   'é', crad",
        "      |        ^^^^",
        "sql-query: the query cannot run",
        "  did you mean `card`?",
    ]


def test_a_table_that_is_not_there_is_told_with_one_that_is(service: Service) -> None:
    said = sql(service, "select 1; select * from purchse", code=2)
    assert "<query>:1:25: error: there is no table `purchse`" in said
    assert "did you mean `purchase`?" in said
    said = sql(service, "from xyz", code=2)
    assert "Tables are alerts, " in said


def test_a_fault_of_a_value_is_told(service: Service) -> None:
    assert "Could not convert string 'US'" in sql(service, "select country::int from purchase", code=2)


def test_a_refusal_while_reading_is_the_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where retention takes records that are being read."""

    def refuses(*_: Any) -> Iterator[Any]:
        raise Refused("log-truncated", "gone", "try again")

    monkeypatch.setattr("samovar.service.sql.tables.records_of", refuses)
    assert sql(service, "select count(card) from purchase", code=2).startswith("log-truncated: gone")


def test_a_query_can_be_ended(service: Service) -> None:
    with service.log() as log:
        engine = local(service, log)
        seen = threading.Event()

        def tell(_: ScanWatch) -> None:
            seen.set()
            raise KeyboardInterrupt

        engine.tell = tell
        (statement,) = statements_in(
            "select sum(a.amount * b.amount * c.amount * d.amount) from purchase a, purchase b, purchase c, purchase d",
            "<query>",
        )
        with pytest.raises(QueryCancelled), engine.run(statement) as rows:
            list(rows.batches)
        assert seen.is_set()
        engine.tell = lambda _: None
        (statement,) = statements_in("select 1", "<query>")
        with engine.run(statement) as rows:
            assert list(rows_of(rows.batches)) == [[1]]


# ---------------------------------------------------------------- as it is printed


def test_rows_are_a_table_json_lines_or_csv(service: Service) -> None:
    query = (
        "select card, count(*) as n, {'a': 1} as more from purchase where card in ('c1', 'c2') group by 1 order by 1"
    )
    assert sql(service, query).splitlines() == [
        "card  n   more", "----  --  --------", "c1    43  {\"a\": 1}", "c2    43  {\"a\": 1}",
    ]  # fmt: skip
    assert objects(service, query)[0] == {"card": "c1", "n": 43, "more": {"a": 1}}
    assert list(csv.reader(io.StringIO(sql(service, query, "--csv"))))[1] == ["c1", "43", '{"a": 1}']


def test_values_that_json_lacks_are_text(service: Service) -> None:
    query = f"select interval 1 day as i, 'nan'::double as f, {2**127 - 1} as big, '\x1b[31m' as c"
    assert objects(service, query) == [{"i": "1 day", "f": "NaN", "big": 2**127 - 1, "c": "\x1b[31m"}]
    assert "\x1b" not in sql(service, query)


def test_columns_of_one_name_are_told_apart(service: Service) -> None:
    assert objects(service, "select 1 as a, 2 as a") == [{"a": 1, "a_2": 2}]


def test_a_limit_is_for_the_rows_that_are_shown(service: Service) -> None:
    assert len(objects(service, "select * from purchase", "--limit", 5)) == 5
    done = run("sql", service.config, "select * from range(2000)")
    assert len(done.stdout.splitlines()) == 1002
    assert done.stderr == "the first 1,000 rows: --limit shows more, --json and --csv all\n"


def test_queries_come_from_files_and_standard_input(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("select 1 as a; -- one\nselect count(*) as n from purchase;\n")
    done = run("sql", service.config, "-f", file, "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"a": 1}, {"n": 300}]
    file.write_text("select 1;\nselect x")
    assert f"{file}:2:8: error" in run("sql", service.config, "-f", file).stderr
    from typer.testing import CliRunner  # noqa: PLC0415 - for its input

    done = CliRunner().invoke(main.app, ["sql", str(service.config), "--json"], input="select 2 as b")
    assert json.loads(done.stdout) == {"b": 2}


def test_wrong_usage_is_refused(service: Service) -> None:
    for options in (["--json", "--csv"], ["--from", "begin"], ["--follow", "--engine", "spark"], ["--limit", "0"]):
        assert run("sql", service.config, "select 1", *options).exit_code == 2


def test_descriptions_and_plans_may_be_asked_for(service: Service) -> None:
    assert {"column_name": "card", "column_type": "VARCHAR"}.items() <= objects(service, "describe purchase")[7].items()
    assert [each["name"] for each in objects(service, "show tables")][:2] == ["alerts", "sessions"]
    assert "PYTHON_ARROW_SCAN" in sql(service, "explain select card from purchase").upper().replace(" ", "_")


def test_tables_are_those_of_the_service(service: Service) -> None:
    with service.log() as log:
        names = Catalog(service.settings, log, TableMasks(service.settings, log, sees_all=True)).names
    common = ["alerts", "sessions", "labels", "dead_letters", "late", "states", "changes", "purchase"]
    assert names == [*common, "alerts_countries", "alerts_testing", "alerts_unusual"]


def test_an_event_that_is_none_has_its_reason(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.produce([purchase("c1", 0, 1), {**purchase("c1", 1, 2), "ts": "never"}])
    query = "select _error is null as fine, card, count(*) as n from purchase group by all order by 1"
    assert objects(service, query) == [
        {"fine": False, "card": None, "n": 1}, {"fine": True, "card": "c1", "n": 1},
    ]  # fmt: skip
    assert objects(service, "select max(_event_time) as t from purchase")[0]["t"].startswith("2026-01-05T08:00:00")
    assert START == 1_767_600_000_000


# ---------------------------------------------------------------- texts that are no text, and drawings


def test_bytes_that_are_not_utf8_are_refused(service: Service, tmp_path: Path) -> None:
    assert "the query is not UTF-8: character 11 is the byte 0xe9" in sql(service, "select caf\udce9 as a", code=2)
    assert "the query is not UTF-8" in sql(service, "select rule from alerts -- \udce9", "--follow", code=2)
    file = tmp_path / "latin.sql"
    file.write_bytes(b"select 'caf\xe9'")
    for done in (
        run("sql", service.config, "-f", file),
        run("sql", service.config, stdin=file.read_bytes()),
    ):
        assert (done.exit_code, "it is not UTF-8" in done.stderr) == (2, True), done.output
    assert json.loads(run("sql", service.config, "--json", stdin=b"\xef\xbb\xbfselect 'caf\xc3\xa9' as a").stdout) == {
        "a": "café"
    }


def test_a_plan_is_drawn_and_not_put_into_a_cell(service: Service) -> None:
    shown = sql(service, "explain select card from purchase where amount > 4")
    assert "│" in shown
    assert "\\u000a" not in shown
    assert set(objects(service, "explain select card from purchase")[0]) == {"explain_key", "explain_value"}
