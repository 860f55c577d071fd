"""Every job of Spark on a cluster of two workers, an executor of which is killed in the middle: the results are those
of the local engine.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import samovar
import samovar.spark
from samovar.changelog.log import Append
from samovar.service.config.loading import load_service
from samovar.service.topology.logs import opened
from samovar.state.rocks import RocksStore
from tests.support.small_service import RULES, Service, make, many, purchase, restored, run, run_apart, wipe
from tests.support.spark_cluster import MASTER, SparkCluster, spark_cluster
from tests.support.views import CARDS, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK = ("--engine", "spark", "--master", MASTER)
HERE = "tests.service.spark.test_cluster_spark"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def service(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """On Kafka, with all that was produced processed."""
    name = f"cluster-{uuid.uuid4().hex[:8]}"
    made = make(tmp_path_factory.mktemp("cluster-service") / "s")
    text = made.config.read_text().replace("service: s", f"service: {name}").replace("{key:", f"{{topic: {name}, key:")
    made.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    (made.config.parent / "views").mkdir()
    put(made, CARDS)
    went_on(made, many(150))
    return made


def went_on(service: Service, events: list[dict[str, Any]]) -> None:
    file = service.config.with_name("events.jsonl")
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert run("produce", service.config, "purchase", file).exit_code == 0
    went = run_apart("run", service.config, "--until-caught-up")
    assert went.returncode == 0, went.stderr


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_p2_tables_are_staged_and_taken_by_the_node(
    cluster: SparkCluster, service: Service, tmp_path: Path, source: str
) -> None:
    """P2: what the lost executor had half made is gone, and the digests are those of the live stores."""
    before, staging = service.digests(), tmp_path / "staging"
    command = ["restore", service.config, *ON_SPARK, "--from", source, "--staging", staging, "--json"]
    done = cluster.run_and_lose_an_executor(*command)
    assert done.exit_code == 0, done.stderr
    assert {each["partition"]: each["digest"] for each in json.loads(done.stdout)["staged"]} == before
    assert not list(staging.rglob("*.part"))
    wipe(service)
    taken = restored(service, "--ingest", staging)
    assert {each["partition"]: each["digest"] for each in taken["restored"]} == before


def test_p2_changelogs_are_verified_against_the_source(cluster: SparkCluster, service: Service) -> None:
    """P2: without the stores, which lie on nodes; with the digests that `verify` finds on the node."""
    done = cluster.run_and_lose_an_executor("verify", service.config, *ON_SPARK, "--json")
    assert done.exit_code == 0, done.stderr
    here = json.loads(run("verify", service.config, "--json").stdout)
    for there, local in zip(json.loads(done.stdout), here, strict=True):
        assert there["digests"] == {side: local["digests"][side] for side in ("changelog", "source")}
        assert (there["partition"], there["equal"]) == (local["partition"], True)
        assert there["offset"] >= local["offset"]  # markers of transactions come after what a store knows


def test_p2_a_changelog_that_differs_from_the_source(cluster: SparkCluster, service: Service) -> None:
    """P2: a row that is gone from a changelog is found, though nobody looks at a store."""
    partition = service.partition("c1")
    with closing(RocksStore(service.store(partition))) as store:
        row, value = next((row, value) for row, value in store.range(b"r", b"s"))
    topic = f"{service.settings.service}-changelog"
    with opened(service.settings) as log:
        log.append([Append(topic=topic, records=[(row, None)], partition=partition)])
        try:
            done = cluster.run("verify", service.config, *ON_SPARK, "--json")
        finally:
            log.append([Append(topic=topic, records=[(row, value)], partition=partition)])
    assert done.exit_code == 1, done.stderr
    (wrong,) = [each for each in json.loads(done.stdout) if not each["equal"]]
    assert wrong["partition"] == partition
    assert {tuple(each["between"]) for each in wrong["differences"]} == {("changelog", "source")}


# ---------------------------------------------------------------- views, backtests, frames


def spent(events: list[dict[str, Any]]) -> list[tuple[str, int, float]]:
    cards = sorted({event["card"] for event in events})
    by_card = {card: [event["amount"] for event in events if event["card"] == card] for card in cards}
    return [(card, len(amounts), round(sum(amounts), 2)) for card, amounts in by_card.items()]


def test_views_are_refreshed(cluster: SparkCluster, service: Service) -> None:
    events = many(150)
    for more, refresh in (([], cluster.run_and_lose_an_executor), (many(40, start_s=4_000), cluster.run)):
        if more:
            went_on(service, more)
            events += more
        done = refresh("views", "refresh", service.config, "--master", MASTER)
        assert done.exit_code == 0, done.stderr
        path = run("views", "path", service.config, "cards").stdout.strip()
        with duckdb.connect() as base:
            found = base.sql(f"select card, purchases, round(spent, 2) from '{path}/**/*.parquet' order by card")
            assert found.fetchall() == spent(events)
        assert not list(Path(path).rglob("_temporary"))


def test_a_backtest(cluster: SparkCluster, service: Service, tmp_path: Path) -> None:
    rule = tmp_path / "other.yml"
    rule.write_text(RULES["testing"].replace("amount > 200", "amount > 100"))
    command = ["rules", "backtest", rule, service.config, "--json"]
    done = cluster.run_and_lose_an_executor(*command, *ON_SPARK)
    assert done.exit_code == 0, done.stderr
    local = run(*command)
    assert local.exit_code == 0, local.output
    there, here = json.loads(done.stdout), json.loads(local.stdout)
    assert timeless(there) == timeless(here)


def timeless(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in ("seconds", "events_per_s", "engine")}


def alert_rows(spark: SparkSession, config: str) -> list[str]:
    samovar.register_spark(spark)
    frame = spark.read.format("samovar").options(config=config, source="alerts").load()
    return sorted(row.id for row in frame.collect())


def matched_rows(spark: SparkSession, config: str) -> list[str]:
    samovar.register_spark(spark)
    frame = spark.read.format("samovar").options(config=config, source="inputs/purchase").load()
    topic = load_service(Path(config)).streams["purchase"].topic
    found = samovar.spark.match(frame, Path(config).parent / "rules", topics=topic, flush=False)
    return sorted(row.id for row in found.collect())


def state_rows(spark: SparkSession, config: str) -> list[str]:
    samovar.register_spark(spark)
    frame = spark.read.format("samovar").options(config=config, source="changelog").load()
    return sorted({row.key for row in frame.collect()})


def error_of_a_frame(spark: SparkSession, config: str) -> str:
    samovar.register_spark(spark)
    try:
        return str(spark.read.format("samovar").load(config).count())
    except Exception as error:
        return str(error)


def state_keys(service: Service) -> list[str]:
    done = run("state", "scan", service.config, "--json")
    assert done.exit_code == 0, done.output
    return sorted(key for each in json.loads(done.stdout) for key in each["key"])


def alerts_of(service: Service) -> list[str]:
    done = run("read", service.config, "alerts", "--json")
    assert done.exit_code == 0, done.output
    return sorted(json.loads(line)["value"]["id"] for line in done.stdout.splitlines())


def test_frames_and_the_matcher(cluster: SparkCluster, service: Service) -> None:
    """Alerts of the service, and those that its rules find in a frame of its inputs."""
    alerts = alerts_of(service)
    assert alerts
    assert cluster.call(f"{HERE}:alert_rows", service.config, loses=True) == alerts
    assert cluster.call(f"{HERE}:matched_rows", service.config, loses=True) == alerts
    assert cluster.call(f"{HERE}:state_rows", service.config, loses=True) == state_keys(service)


# ---------------------------------------------------------------- what cannot run there


def test_what_needs_this_machine_is_refused(cluster: SparkCluster, service: Service, tmp_path: Path) -> None:
    """Each with what to do; of the embedded log before any Spark starts."""
    done = cluster.run("restore", service.config, *ON_SPARK)
    assert (done.exit_code, "staging-needed: " in done.stderr, "--staging PATH" in done.stderr) == (2, True, True)
    unshared = "/proc/self/cwd/staging"  # another folder for every process
    done = cluster.run("restore", service.config, *ON_SPARK, "--staging", unshared)
    assert (done.exit_code, "folder-unshared: " in done.stderr) == (2, True), done.stderr
    config = service.config.with_name("unshared.yml")
    config.write_text(service.config.read_text() + "views: {store: /proc/self/cwd/views-store}\n")
    done = cluster.run("views", "rebuild", config, "--master", MASTER)
    assert (done.exit_code, "folder-unshared: " in done.stderr) == (2, True), done.stderr
    embedded = make(tmp_path / "e")
    embedded.process([purchase("c1", 1, 30)])
    rule = embedded.config.parent / "rules" / "testing.yml"
    (embedded.config.parent / "views").mkdir()
    put(embedded, CARDS)
    for command in (
        ["restore", embedded.config, *ON_SPARK, "--staging", tmp_path / "staging"],
        ["verify", embedded.config, *ON_SPARK],
        ["rules", "backtest", rule, embedded.config, *ON_SPARK],
        ["views", "refresh", embedded.config, "--master", MASTER],
    ):
        refused = run(*command)  # in this process, where a Spark would have to start
        assert (refused.exit_code, "engine-unfit: the embedded log" in refused.stderr) == (2, True), refused.output
    assert "engine-unfit: the embedded log" in cluster.call(f"{HERE}:error_of_a_frame", embedded.config)
