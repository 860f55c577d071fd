"""Settings from the file, the environment and flags, and `samovar config`, which shows where each came from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from samovar.common.errors import Refused
from samovar.service.cli.main import app
from samovar.service.config.loading import (
    OTHERS,
    OTHERS_BEGIN,
    PREFIX,
    BadServiceFile,
    ServiceFile,
    allowed_names,
    load_service,
    unknown_variables,
)
from tests.service.config.test_service_file_page import keys_of
from tests.support.project import ROOT

CANARY = "canary-7f3a-0123456789"
SERVICE = """
service: fraud
log: {embedded: there}
streams:
  purchase: {key: card, partitions: 2, slack: 2s}
  Web-Visits: {key: user}
alerts: hits
cache: 64MB
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    (tmp_path / "service.yml").write_text(SERVICE, "utf-8")
    return tmp_path / "service.yml"


def with_environment(config: Path, *flags: str, **variables: str) -> ServiceFile:
    return load_service(config, variables, flags=flags)


def command(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), env=env)


def shown(config: Path, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    ended = command("config", "show", config, "--json", *arguments, env=env)
    assert ended.exit_code == 0, ended.stderr
    return {row["setting"]: row for row in json.loads(ended.stdout)["settings"]}


# ---------------------------------------------------------------- over the file


def test_flags_win_over_variables_and_those_over_the_file(config: Path) -> None:
    assert with_environment(config).cache_bytes == 64_000_000
    assert with_environment(config, SAMOVAR_CACHE="32MB").cache_bytes == 32_000_000
    assert with_environment(config, "cache=16MB", SAMOVAR_CACHE="32MB").cache_bytes == 16_000_000


def test_a_setting_inside_leaves_its_neighbours(config: Path) -> None:
    settings = with_environment(config, SAMOVAR_STREAMS__PURCHASE__PARTITIONS="8")
    stream = settings.streams["purchase"]
    assert (stream.partitions, stream.slack_ms, stream.key) == (8, 2_000, "card")


def test_names_that_the_user_chose_are_found_whatever_their_case(config: Path) -> None:
    settings = with_environment(config, SAMOVAR_STREAMS__WEB_VISITS__IDLE="9s")
    assert settings.streams["Web-Visits"].idle_ms == 9_000
    assert set(settings.streams) == {"purchase", "Web-Visits"}


def test_a_topic_that_is_only_named_can_have_more_set(config: Path) -> None:
    alerts = with_environment(config, SAMOVAR_ALERTS__RETENTION="90d").alerts
    assert (alerts.topic, alerts.retention_ms) == ("hits", 90 * 86_400_000)


def test_one_log_takes_the_others_place(config: Path) -> None:
    log = with_environment(
        config, SAMOVAR_LOG__KAFKA__BOOTSTRAP="b:9092", SAMOVAR_LOG__KAFKA__SASL_PASSWORD="0123", SAMOVAR_RUN__SLOT="2"
    ).log
    assert log.embedded is None
    assert log.kafka is not None
    assert log.kafka.librdkafka() == {"bootstrap.servers": "b:9092", "sasl.password": "0123"}  # and not 123
    flagged = with_environment(config, "log.kafka.bootstrap=c:1", "log.kafka.client.id=me").log.kafka
    assert flagged is not None
    assert flagged.librdkafka() == {"bootstrap.servers": "c:1", "client.id": "me"}


def test_values_are_what_they_would_be_in_the_file(config: Path) -> None:
    settings = with_environment(
        config, SAMOVAR_STREAMS__PURCHASE__SCHEMA="{card: string}", SAMOVAR_PARAMS='{limit: 5, name: "07"}'
    )
    assert settings.streams["purchase"].fields == {"card": "string"}
    assert settings.params == {"limit": 5, "name": "07"}


@pytest.mark.parametrize(("text", "slot"), [("3", 3), ("fraud-12", 12), ("a.b-c-0", 0)])
def test_a_pods_name_is_a_slot(config: Path, text: str, slot: int) -> None:
    assert with_environment(config, SAMOVAR_RUN__SLOT=text).run.slot == slot


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SAMOVAR_CACHE", "much", "SAMOVAR_CACHE: error: `much` is not a size"),
        ("SAMOVAR_RUN__SLOT", "fraud", "SAMOVAR_RUN__SLOT: error: `fraud` is no slot"),
        ("SAMOVAR_RUN__HTTP", "here", "SAMOVAR_RUN__HTTP: error: `here` is not an address"),
        ("SAMOVAR_STREAMS__PURCHASE__SLAKC", "1s", "there is no setting `slakc` in `streams.purchase`"),
        ("SAMOVAR_REPLICATION", "3", "SAMOVAR_REPLICATION: error: the embedded log has no replicas"),
    ],
)
def test_a_wrong_variable_is_named_and_no_line_is_blamed(config: Path, name: str, value: str, told: str) -> None:
    with pytest.raises(BadServiceFile) as refused:
        with_environment(config, **{name: value})
    assert told in str(refused.value)
    assert "service.yml:" not in str(refused.value)


@pytest.mark.parametrize("flag", ["cache", "=5", "cach=5", "streams..x=1"])
def test_a_flag_that_sets_nothing_is_refused(config: Path, flag: str) -> None:
    with pytest.raises(Refused, match="bad-flag"):
        with_environment(config, flag)


def test_two_variables_for_one_setting_are_refused(config: Path) -> None:
    with pytest.raises(Refused, match="SAMOVAR_ALERTS and SAMOVAR_ALERTS__RETENTION both"):
        with_environment(config, SAMOVAR_ALERTS="hits", SAMOVAR_ALERTS__RETENTION="1d")


# ---------------------------------------------------------------- config show and check


def test_every_setting_is_shown_with_where_it_came_from(config: Path) -> None:
    rows = shown(config, "--set", "max_events=5", env={"SAMOVAR_STREAMS__PURCHASE__IDLE": "1m"})
    assert rows["cache"] == {"setting": "cache", "value": "64MB", "source": "file", "where": "line 8"}
    assert rows["max_events"] == {"setting": "max_events", "value": 5, "source": "flag", "where": "--set max_events"}
    idle = rows["streams.purchase.idle"]
    assert (idle["value"], idle["source"], idle["where"]) == ("1m", "environment", "SAMOVAR_STREAMS__PURCHASE__IDLE")
    assert (rows["alerts.topic"]["source"], rows["alerts.retention"]["source"]) == ("file", "default")
    assert rows["run.slot"] == {"setting": "run.slot", "value": 0, "source": "default", "where": ""}
    last = {name.rpartition(".")[2] for name in rows}
    # Those of maps that are empty here, and those that Kafka's and the registry's clients have, are not there.
    absent = {"kafka", "bootstrap", "client", "url", "class", "emits", "stores", "ttl", "window"}
    absent |= {"file", "max_backoff", "per", "secret", "timeout"}  # of a sink, and of a storm guard
    absent |= {"cert", "ca", "to", "options"}  # of TLS, and of an archive and tables
    inner = set(allowed_names()) & {name.split(".")[0] for name in rows}
    assert set(keys_of(ServiceFile)) - last - inner - absent - {"embedded"} == set()


def test_what_is_shown_can_be_set_again(config: Path) -> None:
    """Each row is a `--set` that changes nothing."""
    rows = shown(config)
    for name, row in rows.items():
        if row["value"] is None or name.startswith(("rules", "streams.Web-Visits")):
            continue
        text = row["value"] if isinstance(row["value"], str) else json.dumps(row["value"])
        assert shown(config, "--set", f"{name}={text}")[name]["value"] == row["value"], name


def test_secrets_are_in_no_output(config: Path) -> None:
    kafka = '{kafka: {bootstrap: "b:1", sasl.password: "${PW}", ssl.key.pem: ' + CANARY + "}}"
    sinks = f"sinks: {{hook: {{url: 'https://host/{CANARY}', secret: {CANARY}}}}}\n"
    config.write_text(SERVICE.replace("{embedded: there}", kafka) + sinks, "utf-8")
    variables = {"PW": CANARY, "SAMOVAR_LOG__KAFKA__SASL_OAUTHBEARER_CLIENT_SECRET": CANARY, "SAMOVAR_CACHE": "much"}
    good = {**variables, "SAMOVAR_CACHE": "1GB"}
    broken = SERVICE.replace("{embedded: there}", kafka) + sinks.replace("secret", "timeout: soon, secret")
    (config.parent / "broken.yml").write_text(broken, "utf-8")
    refused = command("config", "check", config.parent / "broken.yml", env=good)
    assert "`soon` is not a time" in refused.stdout  # with its line, in which both stand
    assert CANARY not in refused.stdout
    for arguments in (["show"], ["show", "--json"], ["check"], ["check", "--json"]):
        for env in (variables, good):
            ended = command("config", arguments[0], config, *arguments[1:], env=env)
            assert CANARY not in ended.stdout + ended.stderr
    rows = shown(config, env=good)
    assert rows["log.kafka.sasl.password"]["value"] == "***"
    assert rows["log.kafka.sasl.oauthbearer.client.secret"]["value"] == "***"


def test_check_tells_all_errors_and_ends_with_1(config: Path) -> None:
    config.write_text(SERVICE.replace("slack: 2s", "slack: 2"), "utf-8")
    ended = command("config", "check", config, "--set", "cache=x", env={"SAMOVAR_MAX_EVENTS": "none"})
    assert ended.exit_code == 1
    assert "service.yml:5:" in ended.stdout
    assert "--set cache: error" in ended.stdout
    assert "SAMOVAR_MAX_EVENTS: error" in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith("3 errors, 0 warnings")
    assert json.loads(command("config", "check", config, "--json").stdout)["errors"] == 1


def test_check_warns_of_variables_that_are_no_settings(config: Path) -> None:
    env = {"SAMOVAR_CHACHE": "1GB", "SAMOVAR_TEST_KAFKA": "x", "SAMOVAR_KILL": "x"}
    assert unknown_variables(env) == ["SAMOVAR_CHACHE"]
    assert command("config", "check", config, env=env).exit_code == 0
    strict = command("config", "check", config, "--strict", env=env)
    assert strict.exit_code == 1
    assert "SAMOVAR_CHACHE names no setting" in strict.stdout


# ---------------------------------------------------------------- documented


def test_every_variable_that_samovar_reads_is_a_setting_or_known_as_none() -> None:
    """A variable read past the settings would be documented nowhere."""
    own = {PREFIX + name.upper() for name in allowed_names()}
    read = set()
    for folder in ("changelog", "common", "patterns", "service", "state", "tasks"):
        for path in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"environ(?:\.get)?[(\[]\s*[\"'](SAMOVAR_[A-Z_]+)", path.read_text("utf-8")))
    others = {name for name in read if name.partition("__")[0] not in own}
    assert others <= {*OTHERS} | {name for name in others if name.startswith(OTHERS_BEGIN)}


def test_the_flags_of_run_are_settings_and_documented() -> None:
    page = (ROOT / "docs" / "service-file.md").read_text("utf-8")
    run = ServiceFile.model_fields["run"].annotation
    assert run is not None
    for name, field in run.model_fields.items():
        flag = f"--{field.alias or name}"
        assert f"`{flag}`" in page, flag
        assert flag in command("run", "--help").stdout
