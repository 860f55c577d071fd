"""A task of the user's in a service: next to rules, in one commit, restored, verified and shown as their state is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samovar.common.errors import Refused
from samovar.service.config.loading import BadServiceFile, load_service
from samovar.service.topology.acls import rights
from samovar.service.topology.plans import spec_of
from samovar.service.topology.topics import plan
from samovar.state.rocks import RocksStore
from samovar.state.stack import ROWS, namespace
from samovar.tasks.rules.timer_index import time_bytes
from samovar.tasks.runtime.stream_task import task_folder
from samovar.tasks.user.inspect import rows_of_stores
from samovar.tasks.user.timers import OWN, TIMER
from tests.faults.comparing import header
from tests.faults.harness import Service
from tests.faults.stage import Stage, Staging
from tests.faults.task_world import CODE, STREAMS, TASKS, rebuilt_digests, task_digests
from tests.support import stages_oracle as stages
from tests.support.doc_snippets import run_command

S = 1_000
T0 = 1_700_000_000_000
HERE = 1  # the partition of c1 and c2
TOLD = """
rule: quiet
match: |
  sequence by card with maxspan=1h
    [told where what == "event" and total > 40] as much
    [told where what == "quiet"] as quiet
"""


def use(at_ms: int, amount: int, card: str = "c1") -> dict[str, Any]:
    return {"card": card, "ts": T0 + at_ms, "amount": amount}


def served(stage: Staging, code: str = CODE, **more: Any) -> Stage:
    streams = {name: {**spec, "idle": "5s", "slack": "0s"} for name, spec in STREAMS.items()}
    here = stage({"quiet": TOLD}, streams, tasks=TASKS, **more)
    (here.service.folder / "totals.py").write_text(code)
    return here


def feed(here: Stage, *events: dict[str, Any]) -> None:
    """Each where its key says, as a producer does."""
    here.service.append_pairs("use", [(event["card"].encode(), json.dumps(event).encode()) for event in events])
    here.settle()


def command(service: Service, *words: str) -> tuple[str, int]:
    return run_command([str(service.config) if word == "CONFIG" else word for word in words])


def told(here: Stage) -> list[tuple[str, int, str]]:
    rows = here.service.read(here.service.settings.streams["told"].topic)
    values = [json.loads(row.value or b"") for row in rows]
    return [(value["what"], value["ts"] - T0, value["card"]) for value in values]


# ---------------------------------------------------------------- at work


def test_rules_read_what_a_task_emits(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(5 * S, 13), use(8 * S, 15), use(60 * S, 1))
    assert told(here) == [("event", 0, "c1"), ("event", 8 * S, "c1"), ("quiet", 28 * S, "c1"), ("event", 60 * S, "c1")]
    (dead,) = here.service.dead()
    headers = dict(dead.headers)
    assert headers["__streams.errors.exception"] == b"TASK_FAILED"
    assert headers["samovar.stage"] == b"totals"
    assert headers["__streams.errors.message"].startswith(b"ValueError: unlucky (totals.py:")
    feed(here, use(70 * S, 1))
    assert [(alert["rule"], alert["at"] - T0) for alert in here.service.alerts()] == [("quiet", 28 * S)]


def test_p2_timers_fired_while_idle_are_in_the_journal_and_a_rebuild_is_equal(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(1 * S, 4, "c2"))
    feed(here, use(2 * S, 50, "e"))
    here.pass_ms(5 * S)
    here.pass_ms(18 * S)
    assert [what for what, _, _ in told(here)] == ["event"] * 3
    here.crash(wipe=True)
    here.pass_ms(60 * S)
    here.pass_ms(60 * S)
    quiet = [each for each in told(here) if each[0] == "quiet"]
    assert sorted(quiet) == [("quiet", 20 * S, "c1"), ("quiet", 21 * S, "c2"), ("quiet", 22 * S, "e")]
    assert [alert["key"] for alert in here.service.alerts()] == [{"card": "e"}]
    feed(here, use(300 * S, 7))
    here.close()
    assert rebuilt_digests(here.service) == task_digests(here.service)
    assert len(set(task_digests(here.service).values())) == 2


def test_a_service_may_have_tasks_and_no_rules(stage: Staging) -> None:
    here = served(stage)
    for path in (here.service.folder / "rules").iterdir():
        path.unlink()
    (here.service.folder / "rules").rmdir()
    feed(here, use(0, 30))
    assert told(here) == [("event", 0, "c1")]


def test_a_message_that_is_no_event_is_one_dead_letter(stage: Staging) -> None:
    """The rules' stage reads every stream, and tells it once."""
    here = served(stage)
    here.service.append("use", [b"{broken"], 0)
    feed(here, use(0, 1))
    assert [dict(row.headers)["__streams.errors.exception"] for row in here.service.dead()] == [b"NOT_JSON"]


def test_a_letter_of_a_task_is_not_put_back_by_itself(stage: Staging) -> None:
    """The rules have had its event: back in the stream, they would have it twice."""
    here = served(stage)
    feed(here, use(0, 13))
    here.close()
    text, code = command(here.service, "dlq", "redrive", "CONFIG", "--dry-run")
    assert code == 0
    assert "nothing to redrive" in text
    assert "1 left out: only a task failed on it" in text
    text, _ = command(here.service, "dlq", "redrive", "CONFIG", "--dry-run", "--to", "use")
    assert "1 letter to" in text


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            'ctx.emit("told", "x", {"card"',
            "keyed by `card`, which is 'c1' in the record: emit it with that key, not 'x'",
        ),
        ('ctx.emit("told", event.key, {"late": 1, "card": 7, "crd"', "which is 7 in the record"),
    ],
)
def test_a_record_goes_to_a_stream_under_its_key(stage: Staging, wrong: str, words: str) -> None:
    here = served(stage, CODE.replace('ctx.emit("told", event.key, {"card"', wrong))
    feed(here, use(0, 30))
    assert words in header(here.service.dead()[0], "message")
    assert told(here) == []


def test_a_record_goes_to_a_stream_with_its_time(stage: Staging) -> None:
    here = served(stage, CODE.replace('"ts": event.time, "total"', '"total"'))
    feed(here, use(0, 30))
    assert "needs its time in `ts`: usually ctx.now" in header(here.service.dead()[0], "message")


def test_what_is_late_for_the_rules_is_late_for_the_task(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(10 * S, 1), use(9 * S, 1))
    assert [dict(row.headers).get("samovar.stage") for row in here.service.late()] == [None]
    assert told(here) == [("event", 10 * S, "c1")]


@pytest.mark.parametrize("scattered", [False, True], ids=["placed", "scattered"])
@pytest.mark.parametrize(("rules", "tasks"), [(0, 1), (0, 2), (1, 2)])
def test_a_record_is_put_aside_and_counted_once(stage: Staging, rules: int, tasks: int, scattered: bool) -> None:
    """P8: however many stages read it, and whichever of them came later, or was behind."""
    both = {**TASKS, "again": {**TASKS["totals"], "class": "again:Totals", "emits": ["again", "again-seen"]}}
    here = served(stage)
    own = CODE.replace('emit("told"', 'emit("again"').replace('emit("seen"', 'emit("again-seen"')
    (here.service.folder / "again.py").write_text(own)
    if not rules:
        shutil.rmtree(here.service.folder / "rules")
    first = dict(list(both.items())[:tasks])
    here.service.edit(lambda data: data["streams"]["use"].update(repartition=scattered))
    here.service.edit(lambda data: data.update(tasks=first))
    times = (10, 9, 11, 5, 12)
    put(here, *(use(at * S, 1) for at in times), {"card": None, "ts": T0}, {**use(13 * S, 1), "ts": "never"})
    here.crash()
    put(here, use(2 * S, 1), {"ts": T0})
    assert put_aside(here) == ([1, 3, 7], [5, 6, 8])
    counts = here.container.status().counts
    assert (counts.late, counts.dead) == (1, 1), "since it was started again"
    here.close()
    here.service.edit(lambda data: data.update(tasks=both))  # one that reads all from the beginning
    put(here, use(3 * S, 1))
    assert put_aside(here) == ([1, 3, 7, 9], [5, 6, 8])


def put(here: Stage, *events: dict[str, Any]) -> None:
    """All to one partition, and through all stages."""
    here.service.events("use", events, HERE)
    stages.settle(here)


def test_timers_that_were_not_called_are_found_by_verify(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(10 * S, 1, "c2"))
    here.close()
    assert command(here.service, "verify", "CONFIG", "--stage", "totals")[1] == 0
    folder = task_folder(here.service.settings.state, HERE, "totals") / "store"
    store = RocksStore(folder)
    (timer,) = [row for row, _ in store.range() if row.endswith(b"c1") and row == namespace(ROWS, OWN) + TIMER + b"c1"]
    store.put(timer, time_bytes(T0 + 5 * S))
    store.close()
    text, code = command(here.service, "verify", "CONFIG", "--stage", "totals")
    assert code == 1
    assert "1 timer not raised that event time has passed; the first: timer, key c1, due at 2023-11-14T22:13:25" in text


def put_aside(here: Stage) -> tuple[list[int], list[int]]:
    """Offsets of the late and the dead ones, in the partition that all are in."""
    letters = here.service.late(), here.service.dead()
    late, dead = ([int(header(row, "offset")) for row in each] for each in letters)
    return sorted(late), sorted(dead)


# ---------------------------------------------------------------- looking, restoring, verifying


def test_state_is_shown_restored_and_verified(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(1 * S, 5, "c2"), use(5 * S, 10))
    here.close()
    service = here.service
    text, _ = command(service, "state", "get", "CONFIG", "c1")
    assert text.splitlines() == [
        "c1  (partition 1 of totals, event time 2023-11-14T22:13:25.000Z)",
        "  totals: 40",
        '  lately: {"at": 1700000005000, "offset": 2}  (until 2023-11-14T22:13:40.000Z)',
        "  timer: due 2023-11-14T22:13:45.000Z",
    ]
    text, _ = command(service, "state", "scan", "CONFIG", "--json")
    keys = {(entry["stage"], *entry["key"], *entry["rules"]) for entry in json.loads(text) if "stage" in entry}
    assert keys == {("totals", card, what) for card in ("c1", "c2") for what in ("totals", "lately", "(timer)")}
    text, _ = command(service, "state", "history", "CONFIG", "c2")
    assert "totals: 5" in text
    before = task_digests(service)
    for source in ("changelog", "source"):
        service.wipe()
        text, code = command(service, "restore", "CONFIG", "--from", source, "--verify")
        assert (code, task_digests(service)) == (0, before), text
    text, code = command(service, "verify", "CONFIG")
    assert code == 0
    assert "partition 1 of totals: equal (store, changelog, source)" in text


def test_state_can_be_had_as_it_was(stage: Staging, tmp_path: Path) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(5 * S, 10), use(9 * S, 1), use(60 * S, 5))
    here.close()
    words = "--from", "source", "--to-time", "2023-11-14T22:13:26Z", "--out", str(tmp_path / "out")
    text, code = command(here.service, "restore", "CONFIG", *words)
    assert code == 0, text
    text, _ = command(here.service, "state", "get", "CONFIG", "c1", "--store", str(tmp_path / "out"))
    assert "  totals: 40\n" in text
    assert "  timer: due 2023-11-14T22:13:45.000Z" in text


def test_verify_shows_the_first_row_that_differs(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30), use(1 * S, 5, "c2"))
    here.close()
    store = RocksStore(task_folder(here.service.settings.state, HERE, "totals") / "store")
    rows = {row: value for row, value in store.range(b"u", b"v") if row.startswith(b"u\x06totals")}
    store.put(b"u\x06totalsc2", rows[b"u\x06totalsc1"])
    store.close()
    text, code = command(here.service, "verify", "CONFIG")
    assert code == 1
    assert "store and changelog differ in 1 row; the first: store totals, key c2" in text
    assert "totals: 30" in text
    assert "totals: 5" in text


RANDOM = CODE.replace("total = totals.get(event.key, 0)", "total = __import__('random').random()")


def test_code_that_is_not_the_same_twice_is_found_out(stage: Staging) -> None:
    here = served(stage, RANDOM)
    feed(here, use(0, 30))
    here.close()
    text, code = command(here.service, "verify", "CONFIG")
    assert code == 1
    assert "store and source differ in 1 row; the first: store totals, key c1" in text


def test_state_of_older_code_is_kept_and_told_to_be_unverifiable(stage: Staging) -> None:
    here = served(stage)
    feed(here, use(0, 30))
    here.close()
    (here.service.folder / "totals.py").write_text(CODE.replace('+ event["amount"]', '+ 2 * event["amount"]'))
    feed(here, use(1 * S, 5))
    here.close()
    store = RocksStore(task_folder(here.service.settings.state, HERE, "totals") / "store")
    assert {row.key: row.value for row in rows_of_stores(store) if row.store == "totals"} == {"c1": 40}
    store.close()
    text, code = command(here.service, "verify", "CONFIG")
    assert "unverifiable: the state was made by 2 versions of the task's code" in text
    assert code == 3


def test_a_task_may_lose_its_window_and_its_timers(stage: Staging) -> None:
    """What they left behind stays, and stops nothing."""
    here = served(stage)
    feed(here, use(0, 30))
    here.close()
    here.service.edit(lambda data: data["tasks"]["totals"].pop("window"))
    code = CODE[: CODE.index("    def on_timer")].replace("        ctx.timer(event.key, event.time + 20_000)\n", "")
    (here.service.folder / "totals.py").write_text(code)
    feed(here, use(60 * S, 5), use(120 * S, 5))
    assert [what for what, _, _ in told(here)] == ["event"] * 3
    assert here.service.dead() == []


# ---------------------------------------------------------------- beginning and end

CLOSING = (
    CODE
    + """
    def init(self, ctx: Context) -> None:
        self.path = ctx.params["path"]

    def close(self, ctx: Context) -> None:
        with open(self.path, "a") as file:
            file.write(f"{ctx.partition} {ctx.store('totals').get('c1')}\\n")
        raise OSError("at the end")
"""
)


def test_close_is_called_and_what_it_raises_is_told(stage: Staging, tmp_path: Path) -> None:
    here = served(stage, CLOSING)
    here.service.edit(lambda data: data["tasks"]["totals"].update(params={"path": str(tmp_path / "closed")}))
    feed(here, use(0, 30))
    here.close()
    assert sorted((tmp_path / "closed").read_text().splitlines()) == ["0 None", "1 30"]
    assert any("partition 1 of totals: task-failed: `close` of the task totals" in line for line in here.said)
    feed(here, use(1 * S, 30))  # no lock is left


def test_an_init_that_raises_stops_the_service(stage: Staging) -> None:
    here = served(stage, CLOSING)
    with pytest.raises(
        Refused, match=r"task-failed: `init` of the task totals \(totals:Totals\) raised KeyError: 'path'"
    ):
        feed(here, use(0, 30))


# ---------------------------------------------------------------- the class


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("total:Totals", CODE, ["there is no total.py next to the service file", "did you mean `totals.py`?"]),
        ("nowhere:Totals", CODE, ["there is no", "nowhere.py, nor a module `nowhere`"]),
        ("totals:Total", CODE, ["has no class `Total`", "did you mean `Totals`?"]),
        ("totals:Totals", "class Totals: pass", ["the class `Totals` has no method `process`"]),
        ("totals:Totals", CODE.replace("def window", "async def window"), ["its `window` is async or has a `yield`"]),
        ("totals:Totals", CODE.replace("totals.put(event.key, total)", "yield 1"), ["its `process` is async"]),
        ("totals:Totals", "import nobody_has_this", ["cannot be imported: ModuleNotFoundError", "totals.py:1"]),
        ("totals:Totals", "def broken(:", ["cannot be imported: ", "SyntaxError"]),
        (
            "totals:Totals",
            "import samovar\nclass Totals(samovar.Task): pass",
            ["the class `Totals` leaves methods open: process"],
        ),
    ],
)
def test_a_class_that_is_none_is_refused(tmp_path: Path, source: str, code: str, words: list[str]) -> None:
    (tmp_path / "totals.py").write_text(code)
    task = {"class": source, "streams": ["use"]}
    (tmp_path / "service.yml").write_text(
        json.dumps({"service": "s", "streams": {"use": {"key": "card"}}, "tasks": {"t": task}})
    )
    with pytest.raises(Refused) as refused:
        spec_of(load_service(tmp_path / "service.yml"), "t")
    for word in words:
        assert word in str(refused.value)


def test_a_class_may_use_what_lies_beside_it_and_be_of_an_installed_module(tmp_path: Path) -> None:
    (tmp_path / "mine_helps.py").write_text("LIMIT = 7\n")
    (tmp_path / "json.py").write_text(
        "import mine_helps\nclass Mine:\n    limit = mine_helps.LIMIT\n    def process(self, event, ctx): ...\n"
    )
    tasks = {
        "mine": {"class": "json:Mine", "streams": "use"},
        "theirs": {"class": "tests.tasks.user.example_task:Theirs", "streams": ["use"]},
    }
    (tmp_path / "service.yml").write_text(
        json.dumps({"service": "s", "streams": {"use": {"key": "card"}}, "tasks": tasks})
    )
    settings = load_service(tmp_path / "service.yml")
    mine, theirs = spec_of(settings, "mine"), spec_of(settings, "theirs")
    assert mine.make().limit == 7  # type: ignore[attr-defined]  # it is the user's own
    assert theirs.make().__class__.__name__ == "Theirs"
    before = mine.version
    (tmp_path / "json.py").write_text((tmp_path / "json.py").read_text() + "# another\n")
    assert spec_of(settings, "mine").version != before


# ---------------------------------------------------------------- the service file

FILE = """
service: s
streams: {use: {key: card}, told: {key: card}}
tasks:
  totals:
    class: totals:Totals
    streams: [use]
    emits: {told: }
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("[use]", "[uses]", 7, ["there is no stream `uses`", "did you mean `use`?"]),
        ("[use]", "[]", 7, ["names no streams"]),
        ("totals:Totals", "totals.Totals", 6, ["names no class", "write totals:Totals"]),
        ("{told: }", "{told: {topic: x}}", 8, ["`told` is a stream, whose topic is given there"]),
        ("{told: }", "[use]", 8, ["the task totals reads what it writes to `use`", "for ever"]),
        ("{told: }", "{a b: }", 8, ["cannot be a name here"]),
        ("    emits: {told: }", "    emit: {told: }", 8, ["there is no setting `emit`", "did you mean `emits`?"]),
        ("    emits: {told: }", "    window: 0s", 8, ["a window needs some time"]),
        ("    emits: {told: }", "    window: 10", 8, ["`10` has no unit"]),
        ("    emits: {told: }", "    stores: {a: {ttl: 0s}}", 8, ["a time to live needs some time"]),
        ("    emits: {told: }", "    stores: {a: {tll: 1d}}", 8, ["no setting `tll`", "did you mean `ttl`?"]),
        ("    emits: {told: }", "    stores: 7", 8, ["`7` names nothing"]),
        ("  totals:\n", "  by-card:\n", 5, ["`by-card` cannot be a task's name"]),
        ("  totals:\n", "  7:\n", 5, ["`7` cannot be a task's name"]),
        ("    emits: {told: }", "    emits: {x: s-late}", 8, ["the topic `s-late` is that of"]),
    ],
)
def test_errors_show_their_place(tmp_path: Path, old: str, new: str, line: int, words: list[str]) -> None:
    assert old in FILE
    (tmp_path / "totals.py").write_text(CODE)
    (tmp_path / "service.yml").write_text(FILE.replace(old, new))
    with pytest.raises(BadServiceFile) as bad:
        load_service(tmp_path / "service.yml")
    assert f"service.yml:{line}:" in str(bad.value)
    for word in words:
        assert word in str(bad.value), bad.value


def test_topics_and_rights_of_a_task(tmp_path: Path) -> None:
    file = FILE.replace("{told: }", "{told: , mine: {retention: 1d}}") + 'log: {kafka: {bootstrap: "127.0.0.1:1"}}\n'
    (tmp_path / "totals.py").write_text(CODE)
    (tmp_path / "service.yml").write_text(file)
    settings = load_service(tmp_path / "service.yml")
    specs = {spec.name: spec for spec in plan(settings)}
    own = {"s-changelog-totals": "changelog", "s-journal-totals": "journal", "s-mine": "emitted"}
    assert {name: str(specs[name].role) for name in own} == own
    assert specs["s-mine"].settings["retention.ms"] == "86400000"
    may = {right.name: right.operations for right in rights(settings, list(specs.values())) if right.who == "service"}
    assert "WRITE" in may["told"]
    assert "WRITE" in may["s-mine"]
    assert "WRITE" not in may["use"]


def test_a_circle_through_other_tasks_is_refused_and_a_chain_is_not(tmp_path: Path) -> None:
    streams = {name: {"key": "card"} for name in ("a", "b", "c")}
    tasks = {
        "first": {"class": "m:C", "streams": ["a"], "emits": ["b"]},
        "second": {"class": "m:C", "streams": ["b"], "emits": ["c"]},
    }
    (tmp_path / "service.yml").write_text(json.dumps({"service": "s", "streams": streams, "tasks": tasks}))
    assert list(load_service(tmp_path / "service.yml").tasks) == ["first", "second"]
    tasks["second"]["emits"] = ["a"]
    (tmp_path / "service.yml").write_text(json.dumps({"service": "s", "streams": streams, "tasks": tasks}))
    with pytest.raises(BadServiceFile, match="the task first reads what it writes to `b`"):
        load_service(tmp_path / "service.yml")
