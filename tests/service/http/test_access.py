"""Safe by default: who may ask, what they may see, and what a browser may be made to do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from samovar.changelog.log import Append, TopicPartition
from samovar.common.errors import Refused
from samovar.service.auth.tokens import PREFIX, Role, add_token, hash_of, topic_of
from samovar.service.config.loading import load_service
from samovar.service.http.middleware import HEADERS, RateLimiter
from samovar.service.masking.fields import HIDDEN
from samovar.service.topology.logs import opened
from tests.contracts.log_driving import unique
from tests.support.http_server import Served, listening_to, served, wait_for
from tests.support.project import ROOT
from tests.support.schema_registry import TestRegistry, running
from tests.support.small_service import Service, make, purchase, run, run_apart
from tests.support.used_service import MARKED

CARD = "4929-1234-5678-9012"
QUOTING = """
rule: quoting
title: Says the card
match: |
  sequence by country with maxspan=1m
    [purchase where amount > 5000] as p
emit: {card: p.card, amount: p.amount}
message: "{p.card} paid {p.amount}"
"""


def tokens_of(service: Service) -> dict[str, str]:
    settings = service.settings
    with opened(settings) as log:
        return {role.word: add_token(settings, log, role.word, role, "test") for role in Role}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A service with marked fields and a token a role."""
    service = make(tmp_path_factory.mktemp("access") / "s")
    service.config.write_text(MARKED)
    (service.config.parent / "rules" / "quoting.yml").write_text(QUOTING)
    amounts = [(0, 1), (1, 1), (2, 900), (3, 6000), (30, 3), (31, 1), (32, 1.5), (60, 3)]
    service.produce([purchase(CARD, second, amount) for second, amount in amounts])
    with service.log() as log:
        log.append([Append(topic="purchase", records=[(CARD.encode(), f"{CARD} is no json".encode())])])
        log.append(
            [Append(topic="purchase", records=[(CARD.encode(), json.dumps({"card": CARD, "ts": "never"}).encode())])]
        )
    service.process([purchase(CARD, 100, 3), purchase(CARD, 1, 3)])
    service.settle()
    tokens = tokens_of(service)
    with served(service) as site:
        site.as_(tokens["viewer"]).caught_up()
        yield site, tokens


# ---------------------------------------------------------------- tokens and roles


def test_a_token_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    made = run("tokens", "add", service.config, "anna", "--role", "author")
    token = made.stdout.strip()
    assert made.exit_code == 0
    assert token.startswith(PREFIX)
    assert run("tokens", "list", service.config).stdout.startswith("anna  author  made ")
    again = run("tokens", "add", service.config, "anna")
    assert (again.exit_code, again.stderr.split(":")[0]) == (2, "token-exists")
    with service.log() as log:
        reader = log.reader({TopicPartition(topic_of("s"), 0): 0})
        values = b"".join(value or b"" for records in reader.poll(100, 5) for _, value in records.pairs())
        reader.close()
    assert token.encode() not in values
    assert hash_of(token).encode() in values
    whole = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert token.encode() not in whole
    assert run("tokens", "remove", service.config, "ana").stderr.startswith("unknown-token: ")
    assert run("tokens", "remove", service.config, "anna").exit_code == 0
    assert json.loads(run("tokens", "list", service.config, "--json").stdout) == []
    assert run("tokens", "add", service.config, "x", "--role", "king").stderr.startswith("unknown-role: ")
    assert run("tokens", "add", service.config, "a b").stderr.startswith("bad-token-name: ")


def test_an_address_that_others_reach_needs_a_token_first(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    done = run_apart("serve", service.config, "--host", "0.0.0.0", "--port", "0")
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "access-required")
    tokens = tokens_of(service)
    with served(service, host="0.0.0.0") as site:
        site.refused("/status", 401, "access-token")
        assert site.as_(tokens["viewer"]).get("/status")["service"] == "s"


def test_without_a_token_only_probes_and_the_way_in_are_answered(closed: tuple[Served, dict[str, str]]) -> None:
    site, _ = closed
    paths = site.world_paths()
    assert len(paths) > 30
    for method, path in paths:
        answer = site.client.request(method, path, headers={"origin": str(site.client.base_url).rstrip("/")})
        if path.rpartition("/")[2] in ("live", "ready", "caught-up", "me", "session") and "alerts" not in path:
            assert answer.status_code != 401, path
        else:
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["www-authenticate"] == "Bearer"
    me = site.get("/me")
    assert (me["role"], me["may"]) == (None, [])
    assert "service" not in me


def test_roles_may_what_they_may(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    viewer, author, operator = (site.as_(tokens[role.word]) for role in Role)
    alert = viewer.get("/alerts")["alerts"][0]["id"]
    assert viewer.put(f"/alerts/{alert}/label", {"label": "open"}, 403)["code"] == "access-role"
    assert viewer.post("/rules/try", {"text": "x"}, 403)["code"] == "access-role"
    assert viewer.post("/rules/preview", {"text": "x"}, 403)["code"] == "access-role"
    assert viewer.post("/dead-letters/redrive", {}, 403)["code"] == "access-role"
    assert author.put(f"/alerts/{alert}/label", {"label": "open"})["by"] == "author"
    assert author.post("/dead-letters/redrive", {}, 403)["code"] == "access-role"
    assert author.post("/streams/purchase/events", {}, 403)["code"] == "access-role"
    author.refused("/audit", 403, "access-role")
    assert operator.post("/dead-letters/redrive", {"dry_run": True})["dry_run"] is True
    trail = operator.get("/audit")["entries"]
    assert ("author", "alert labelled") in [(entry["who"], entry["what"]) for entry in trail]


def test_a_removed_token_is_refused_soon(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    tokens = tokens_of(service)
    with served(service) as site:
        viewer = site.as_(tokens["viewer"])
        viewer.get("/status")
        assert run("tokens", "remove", service.config, "viewer").exit_code == 0
        wait_for(lambda: viewer.ask("GET", "/status").status_code == 401)


def test_a_page_logs_in_by_a_cookie_that_no_script_reads(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    own = str(site.client.base_url).rstrip("/")
    with httpx2.Client(base_url=own, trust_env=False) as page:
        wrong = page.post("/api/v1/session", json={"token": "smv_wrong"}, headers={"origin": own})
        assert wrong.status_code == 401
        done = page.post("/api/v1/session", json={"token": tokens["author"]}, headers={"origin": own})
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert page.get("/api/v1/me").json()["role"] == "author"
        assert page.post("/api/v1/rules/check", json={"text": "x"}, headers={"origin": own}).status_code == 200
        page.delete("/api/v1/session", headers={"origin": own})
        assert page.get("/api/v1/me").json()["role"] is None


# ---------------------------------------------------------------- browsers


def test_a_change_from_another_site_is_refused(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with served(service) as site:
        body = {"text": "x"}
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": str(site.client.base_url).rstrip("/")},
            {"cookie": "samovar=x"},
        ):
            found = site.client.post("/api/v1/rules/check", json=body, headers=headers)
            assert (found.status_code, found.json()["code"]) == (403, "cross-origin"), headers
        own = str(site.client.base_url).rstrip("/")
        assert site.client.post("/api/v1/rules/check", json=body, headers={"origin": own}).status_code == 200
        assert site.client.post("/api/v1/rules/check", json=body).status_code == 200  # no browser


def test_a_name_of_another_site_that_points_here_is_not_answered(tmp_path: Path) -> None:
    with served(make(tmp_path / "s")) as site:
        for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""):
            found = site.client.get("/api/v1/me", headers={"host": host})
            assert found.status_code in (400, 421), host
        assert site.client.get("/api/v1/me", headers={"host": "localhost:1"}).status_code == 200


def test_every_answer_keeps_browsers_in_bounds(closed: tuple[Served, dict[str, str]]) -> None:
    site, _ = closed
    for path in ("/", "/api/v1/me", "/api/v1/status", "/nothing.js", "/api/v1/nowhere"):
        found = site.client.get(path)
        for name, value in HEADERS.items():
            assert found.headers[name] == value, (path, name)
        assert "access-control-allow-origin" not in found.headers
        assert "server" not in found.headers or "uvicorn" in found.headers["server"]
    csp = site.client.get("/").headers["content-security-policy"]
    assert "unsafe" not in csp
    assert "script-src 'self'" in csp


def test_no_path_leads_out_of_the_pages(closed: tuple[Served, dict[str, str]]) -> None:
    site, _ = closed
    for path in (
        "/../service.yml",
        "/..%2f..%2fservice.yml",
        "/%2e%2e/settings.py",
        "//etc/passwd",
        "/static/../http.py",
    ):
        found = site.client.get(path)
        assert "streams" not in found.text
        assert "import" not in found.text or "<script" in found.text


# ---------------------------------------------------------------- limits


def test_a_body_has_an_end(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "http: {max_request: 10kB}\n")
    with served(service) as site:
        big = b"x" * 20_000
        assert site.client.post("/api/v1/streams/purchase/events", content=big).json()["code"] == "request-large"

        def endless() -> Iterator[bytes]:
            for _ in range(100):
                yield b"x" * 1_000

        found = site.client.post("/api/v1/streams/purchase/events", content=endless())
        assert (found.status_code, found.json()["code"]) == (413, "request-large")


def test_one_client_may_ask_so_often_and_no_more(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "http: {requests_per_s: 5}\n")
    with served(service) as site:
        answers = [site.client.get("/api/v1/live") for _ in range(40)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert int(refused[0].headers["retry-after"]) >= 1
        assert refused[0].json()["code"] == "rate-limit"


def test_requests_flow_back_in_time_and_clients_are_apart() -> None:
    rates = RateLimiter(per_s=10, burst=2)
    assert [rates.take("a", 0.0), rates.take("a", 0.0)] == [0.0, 0.0]
    assert rates.take("a", 0.0) == pytest.approx(0.1)
    assert rates.take("b", 0.0) == 0.0
    assert rates.take("a", 0.2) == 0.0


# ---------------------------------------------------------------- what is marked pii

SEEN = (
    "/alerts",
    "/keys",
    "/streams/purchase/events",
    "/dead-letters",
    "/late",
    "/alerts/values?rule=quoting&field=card",
    "/status",
    "/rules",
    "/lists",
    "/keys/{key}",
    "/keys/{key}/events",
    "/keys/{key}/events?before=" + ",".join(f"purchase/{partition}:999" for partition in range(4)),
    "/keys/{key}/why?rule=testing",
)


def test_marked_fields_are_hidden_from_all_but_operators(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    operator = site.as_(tokens["operator"])
    assert CARD in json.dumps(operator.get("/alerts"))
    for role in ("viewer", "author"):
        asked = site.as_(tokens[role])
        assert asked.get("/me")["masked"] == ["purchase.card"]
        alerts = asked.get("/alerts")["alerts"]
        assert {alert["rule"] for alert in alerts} >= {"testing", "quoting"}
        key = next(alert["key_text"] for alert in alerts if alert["rule"] == "testing")
        paths = [*SEEN, *(f"/alerts/{alert['id']}" for alert in alerts)]
        for path in paths:
            assert CARD not in json.dumps(asked.get(path.format(key=key))), path
        quoted = next(alert for alert in alerts if alert["rule"] == "quoting")
        assert quoted["message"] == HIDDEN
        assert quoted["emit"]["amount"] == 6000
        letters = asked.get("/dead-letters")["letters"]
        assert [letter.get("value") for letter in letters].count(HIDDEN) == 1


def test_whoever_sees_pseudonyms_takes_an_item_from_a_list_by_its_own(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    author, operator = site.as_(tokens["author"]), site.as_(tokens["operator"])
    match = "sequence by card with maxspan=1m\n    [purchase where card in $watched] as p"
    text = f'rule: watching\ntitle: t\nmatch: |\n  {match}\nlists: {{watched: ["{CARD}", other]}}\n'
    operator.post("/rules/publish", {"text": text, "shadow": True})
    # Who could put a guess on it would see by the alerts whose it is.
    assert author.post("/lists/watched/add", {"items": ["third"]}, 403)["code"] == "pii-comparison"
    assert author.post("/lists/watched/plan", {"add": ["third"]}, 403)["code"] == "pii-comparison"
    assert author.post("/lists/watched/remove", {"items": [CARD]}, 409)["code"] == "list-unchanged"
    operator.post("/lists/watched/add", {"items": ["third"]})
    found = author.get("/lists/watched")
    for path in ("/lists/watched", "/lists", "/rules/watching", "/rules/watching/history"):
        assert CARD not in json.dumps(author.get(path)), path
    assert author.ask("GET", "/rules/watching/svg").status_code == 403
    assert "third" not in json.dumps(found["changes"])
    alias = found["items"][0]
    assert author.post("/lists/watched/plan", {"remove": [alias]})["removed"] == 1
    author.post("/lists/watched/remove", {"items": [alias]})
    assert operator.get("/lists/watched")["items"] == ["other", "third"]
    assert operator.get("/lists/watched")["changes"][0]["remove"] == [CARD]
    viewer = site.as_(tokens["viewer"])
    assert viewer.post("/lists/watched/plan", {"add": ["x"]}, 403)["code"] == "access-role"


def test_a_pseudonym_leads_to_its_key(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    viewer = site.as_(tokens["viewer"])
    alert = next(each for each in viewer.get("/alerts")["alerts"] if each["rule"] == "testing")
    assert alert["key_text"] == alert["key"]["card"]
    held = viewer.get(f"/keys/{alert['key_text']}")
    assert CARD not in json.dumps(held)
    (partial,) = next(rule for each in held["held"] for rule in each["rules"] if rule["rule"] == "testing")["partials"]
    assert [event["event"]["amount"] for event in partial["bound"]] == [1, 1.5]
    assert partial["bound"][0]["event"]["card"] == alert["key_text"]
    assert viewer.get("/alerts", params={"key": alert["key_text"]})["total"] >= 1


def test_live_alerts_are_hidden_too(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    with listening_to(site.as_(tokens["viewer"]), params={"from": "0.0"}) as stream:
        stream.next()
        assert CARD not in json.dumps(stream.next())
    with listening_to(site.as_(tokens["operator"]), params={"from": "0.0", "rule": "testing"}) as stream:
        stream.next()
        assert CARD in json.dumps(stream.next())


def test_a_bad_line_is_not_quoted_to_who_may_not_see(closed: tuple[Served, dict[str, str]]) -> None:
    site, tokens = closed
    bad = json.dumps({"card": CARD, "ts": CARD})
    found = site.as_(tokens["operator"]).ask("POST", "/streams/purchase/events", content=bad)
    assert found.status_code == 422
    tried = site.as_(tokens["author"]).post("/rules/try", {"text": QUOTING, "minutes": 1000})
    assert tried["matches"] == 1
    assert CARD not in json.dumps(tried)


# ---------------------------------------------------------------- secrets

CANARY = "canary-3f9c77aa51d04be2"
SECRETS = f"""
service: s
log:
  kafka:
    bootstrap: "127.0.0.1:1"
    sasl.password: {CANARY}
    ssl.key.pem: {CANARY}
    sasl.jaas.config: {CANARY}
streams:
  purchase: {{key: card, partitions: 2, schema: {{card: string, amount: double}}, pii: [card]}}
  avro:
    key: card
    format: avro
    registry:
      url: "http://127.0.0.1:1"
      basic.auth.user.info: "user:{CANARY}"
      bearer.auth.client.secret: {CANARY}
      bearer.auth.token: {CANARY}
      ssl.key.password: {CANARY}
      max.retries: 1
sinks:
  soc: {{url: "https://user:{CANARY}@127.0.0.1:1/{CANARY}", secret: {CANARY}}}
"""


SASL = f"""
service: {{name}}
log:
  kafka:
    bootstrap: "{{kafka}}"
    security.protocol: SASL_PLAINTEXT
    sasl.mechanism: PLAIN
    sasl.username: user
    sasl.password: {CANARY}
    debug: "security,broker,protocol"
streams:
  purchase: {{{{key: card, partitions: 2, schema: {{{{card: string, amount: double}}}}}}}}
"""


@contextmanager
def container_with_sasl(folder: Path, kafka: str) -> Iterator[Path]:
    """A container whose client tells all that it does with a broker that takes no password; where it says so."""
    service, words = make(folder), folder / "said.jsonl"
    service.config.write_text(SASL.format(name=unique("s"), kafka=kafka))
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(service.config), "--log", "json"]
    with words.open("wb") as said, subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said) as process:
        try:
            yield words
        finally:
            process.terminate()


def test_a_secret_is_in_no_log_error_page_or_metric(tmp_path: Path, kafka: str) -> None:
    """A canary in every secret setting, and every command and endpoint that could show one."""
    with container_with_sasl(tmp_path / "sasl", kafka) as words:
        _secrets_elsewhere(tmp_path)
        wait_for(lambda: "SASL" in words.read_text() and "FAIL" in words.read_text())
    assert CANARY not in words.read_text()


def _secrets_elsewhere(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(SECRETS)
    told = [run("config", "show", service.config), run("config", "check", service.config)]
    told += [run("topics", "plan", service.config), run("doctor", service.config)]
    service.config.write_text(SECRETS.replace("127.0.0.1:1", "no port").replace("streams:", "streamz:"))
    told += [run("config", "check", service.config), run("status", service.config), run("serve", service.config)]
    text = "".join(each.output + each.stderr for each in told)
    assert "streamz" in text
    with running(TestRegistry(password="another")) as registry:
        one_way_in = re.sub(r" +(?:bearer|ssl.key.password).*\n", "", SECRETS)
        service.config.write_text(one_way_in.replace("http://127.0.0.1:1", registry.url))
        refused = run("doctor", service.config)
    assert "registry-refused" in refused.output
    text += refused.output + refused.stderr
    assert CANARY not in text
    # The same sinks on a log that answers: their failures are told without where they go.
    own = f"sinks:\n  soc: {{url: 'http://user:{CANARY}@127.0.0.1:1/{CANARY}', secret: {CANARY}}}\n"
    service.config.write_text(MARKED + own)
    service.process([])
    with served(service) as site:
        wait_for(lambda: site.world.sinks.reports()[0].partitions == 2)
        amounts = [(0, 1), (1, 1), (2, 900), (60, 3)]
        service.process([purchase("c", second, amount) for second, amount in amounts])
        wait_for(lambda: site.world.sinks.reports()[0].failed > 0)
        paths = [path for method, path in site.world_paths() if method == "GET" and not path.endswith("/live")]
        seen = "".join(site.client.get(path).text for path in [*paths, "/", "/metrics"])
        seen += repr(site.world.settings) + repr(site.world.sinks.reports()) + str(site.world.settings.model_dump())
        assert "samovar_sink_failed_total" in seen
        assert CANARY not in seen


def test_what_is_wrong_with_a_sink_is_said_without_its_secret(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    for sinks in (
        f"soc: {{url: 'ftp://{CANARY}'}}",
        f"soc: {{file: a, secret: {CANARY}}}",
        f"soc: {{url: 'http://a/{CANARY}', file: a}}",
        "soc: {url: 'http://a', secret: short-canary-3f}",
    ):
        service.config.write_text(f"{MARKED}sinks: {{{sinks}}}\n")
        with pytest.raises(Refused) as refused:
            load_service(service.config)
        assert CANARY not in str(refused.value)
        assert "short-canary-3f" not in str(refused.value)


def test_letters_on_a_terminal_are_hidden_unless_asked_for(closed: tuple[Served, dict[str, str]]) -> None:
    site, _ = closed
    config = site.service.config
    for words in ((), ("--json",)):
        assert CARD not in run("dlq", "show", config, *words).stdout
        assert CARD in run("dlq", "show", config, "--pii", *words).stdout


def test_a_marked_key_in_the_wrong_place_is_not_quoted(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(MARKED)
    service.produce([purchase("a", 0, 1)])
    with service.log() as log:
        wrong = 1 - service.partition(CARD)
        log.append(
            [
                Append(
                    topic="purchase",
                    records=[(CARD.encode(), json.dumps(purchase(CARD, 1, 1)).encode())],
                    partition=wrong,
                )
            ]
        )
    done = run("topics", "check", service.config)
    assert "key-misplaced" in done.output
    assert CARD not in done.output
