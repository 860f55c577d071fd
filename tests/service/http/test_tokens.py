"""Tokens and the sessions of browsers: what ends them, on every node, and that nothing fails open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Append, Log, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.service.auth import audit
from samovar.service.auth import tokens as access
from samovar.service.auth.tokens import (
    MASK,
    MOST_PER_TOKEN,
    Role,
    Tokens,
    add_token,
    hash_of,
    load_tokens,
    remove_token,
    topic_of,
)
from samovar.service.config.addresses import HttpAddress, place_of
from samovar.service.http import broadcaster as live
from samovar.service.http.app import tokens_text
from samovar.service.http.jobs import OnProgress
from samovar.service.http.middleware import FORWARDED
from samovar.service.http.request import cookie_of
from samovar.service.http.server import client_context
from samovar.service.http.state import AppState, refuse_open
from samovar.service.topology.logs import opened
from tests.service.http.test_access import tokens_of
from tests.service.http.test_nodes import two_nodes
from tests.support.http_server import Served, listening_to, served, wait_for
from tests.support.small_service import Service, make, purchase, run
from tests.support.used_service import MARKED

OPERATORS = ("/status", "/alerts", "/audit")


def is_shut(site: Served) -> bool:
    return all(site.ask("GET", path).status_code == 401 for path in OPERATORS)


@contextmanager
def page_of(site: Served, token: str | None = None) -> Iterator[httpx2.Client]:
    """A browser's page: its cookies, and the origin that a browser sends."""
    own = str(site.client.base_url).rstrip("/")
    with httpx2.Client(
        base_url=own,
        trust_env=False,
        timeout=30,
        headers={"origin": own},
        verify=client_context(site.world.settings.http.tls),
    ) as page:
        if token is not None:
            assert page.post("/api/v1/session", json={"token": token}).status_code == 200
        yield page


def role_of(page: httpx2.Client) -> str | None:
    found: str | None = page.get("/api/v1/me").json()["role"]
    return found


def access_records(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    at = TopicPartition(topic_of("s"), 0)
    return [pair for records in read_all(log, at) for pair in records.pairs()]


# ---------------------------------------------------------------- no token is left


def test_when_the_last_token_is_removed_nobody_may_ask(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with served(service) as site:
        assert site.get("/me")["role"] == "operator"  # no token was ever made
        token = run("tokens", "add", service.config, "anna", "--role", "operator").stdout.strip()
        wait_for(lambda: is_shut(site))
        assert site.as_(token).get("/status")["service"] == "s"
        assert run("tokens", "remove", service.config, "anna").exit_code == 0
        wait_for(lambda: is_shut(site.as_(token)))
        assert is_shut(site)
        assert site.get("/me") == {"access": "tokens", "name": None, "role": None, "may": [], "masked": []}
        assert "nobody" in run("tokens", "list", service.config).stdout
        again = run("tokens", "add", service.config, "berta", "--role", "operator").stdout.strip()
        wait_for(lambda: site.as_(again).ask("GET", "/audit").status_code == 200)
    with served(service) as restarted:
        assert is_shut(restarted)
        assert not is_shut(restarted.as_(again))


def test_a_restart_without_tokens_left_is_not_open_either(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with opened(service.settings) as log:
        add_token(service.settings, log, "anna", Role.OPERATOR, "test")
        remove_token(service.settings, log, "anna")
        assert tokens_text(load_tokens(log, "s")).startswith("no API token is left: nobody may ask")
    with served(service) as site:
        assert is_shut(site)


def test_a_compacted_topic_still_says_that_there_was_a_token(tmp_path: Path) -> None:
    """All that a compaction leaves: no token, no tombstone."""
    service = make(tmp_path / "s")
    with opened(service.settings) as log:
        add_token(service.settings, log, "anna", Role.OPERATOR, "test")
        remove_token(service.settings, log, "anna")
        last = dict(access_records(log))
        log.delete([topic_of("s")])
        log.create([TopicSpec(topic_of("s"), 1, {"cleanup.policy": "compact"})])
        log.append(
            [
                Append(
                    topic=topic_of("s"),
                    records=[(key, value) for key, value in last.items() if value is not None],
                    partition=0,
                )
            ]
        )
    with served(service) as site:
        assert is_shut(site)


def test_a_topic_that_was_deleted_and_made_again_opens_nothing(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    token = run("tokens", "add", service.config, "anna", "--role", "operator").stdout.strip()
    with served(service) as site:
        assert not is_shut(site.as_(token))
        site.log.delete([topic_of("s")])
        wait_for(lambda: is_shut(site.as_(token)))
        assert is_shut(site)
        site.log.create([TopicSpec(topic_of("s"), 1, {"cleanup.policy": "compact"})])
        another = run("tokens", "add", service.config, "berta", "--role", "operator").stdout.strip()
        wait_for(lambda: not is_shut(site.as_(another)))
        assert is_shut(site)
        assert is_shut(site.as_(token))
    with opened(service.settings) as log:
        log.delete([topic_of("s")])
    with served(service) as restarted:  # the audit trail remembers
        assert is_shut(restarted)


def test_records_that_cannot_be_read_give_nobody_anything_and_stop_nothing(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    with served(service) as site:
        token = run("tokens", "add", service.config, "anna", "--role", "operator").stdout.strip()
        wait_for(lambda: not is_shut(site.as_(token)))
        before = site.world.tokens.mask_secret
        hashed = hash_of("smv_x")
        bad: list[tuple[bytes, bytes | None]] = [
            (b"a", b"no json"),
            (b"b", b"{}"),
            (b"c", json.dumps({"v": 99, "name": "c", "role": "operator", "hash": hashed, "at": 1, "by": "x"}).encode()),
            (b"d", json.dumps({"v": 1, "name": "d", "role": "king", "hash": hashed, "at": 1, "by": "x"}).encode()),
            (b"\xff\xfe", b"[]"),
            (MASK.encode(), b"damaged"),
            (MASK.encode(), None),
            (b"#session:x", b"7"),
        ]
        site.log.append([Append(topic=topic_of("s"), records=bad, partition=0)])
        site.log.append([Append(topic="s-labels", records=[(b"x", b"no label")], partition=0)])
        assert run("tokens", "remove", service.config, "anna").exit_code == 0
        wait_for(lambda: is_shut(site.as_(token)))
        assert is_shut(site.as_("smv_x"))
        assert site.world.tokens.mask_secret == before


def test_a_record_of_an_unknown_kind_closes_and_never_opens() -> None:
    tokens = Tokens()
    tokens.fold([(b"anna", None)])  # a tombstone that compaction left
    assert tokens.was_made
    assert not len(tokens)


def test_pseudonyms_are_never_made_with_a_secret_that_anybody_knows(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(MARKED)
    with opened(service.settings) as log:
        worlds = [AppState(service.settings, log, _place()) for _ in range(2)]
        first, second = (world.masks(access.NOBODY).alias("4929") for world in worlds)
        assert first != second  # before the topic's secret is known
        for world in worlds:
            world.index.close()


def _place() -> HttpAddress:
    return place_of("127.0.0.1", 0)


def test_a_declared_proxy_asks_for_others_and_needs_tokens(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + 'http: {trusted_proxies: ["127.0.0.1"]}\n')
    with pytest.raises(Refused, match="access-required"):
        refuse_open(service.settings, _place(), Tokens())
    done = run("serve", service.config, "--port", "0")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "access-required")


def test_without_tokens_what_came_through_a_proxy_is_not_from_this_machine(tmp_path: Path) -> None:
    with served(make(tmp_path / "s")) as site:
        assert site.client.get("/api/v1/status").status_code == 200
        for name in FORWARDED:  # nginx names 127.0.0.1 as the host unless it is told otherwise
            found = site.client.get("/api/v1/status", headers={name: "192.0.2.7"})
            assert (found.status_code, found.json()["code"]) == (421, "http-host"), name


# ---------------------------------------------------------------- what a removed token had begun


def ends(stream: Any) -> bool:
    try:
        while True:
            stream.next()
    except AssertionError as ended:
        return str(ended) == "the stream ended"


def test_live_alerts_end_with_the_token_that_they_were_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUIET_S", 3_600.0)  # nobody looks again by the clock
    service = make(tmp_path / "s")
    service.process([purchase("c", 0, 1)])
    tokens = tokens_of(service)
    with served(service) as site:
        kept, gone = site.as_(tokens["author"]), site.as_(tokens["viewer"])
        with listening_to(gone) as stream, listening_to(kept) as other:
            assert stream.next()["event"] == other.next()["event"] == "hello"
            assert run("tokens", "remove", service.config, "viewer").exit_code == 0
            assert ends(stream)
            assert len(site.world.broadcaster) == 1
            service.process([purchase("c", second, amount) for second, amount in ((1, 1), (2, 900), (60, 3))])
            assert other.next()["event"] == "alert"


def test_live_alerts_end_when_the_role_changes(tmp_path: Path) -> None:
    """What an operator was shown in the clear must not go on for a viewer."""
    service = make(tmp_path / "s")
    service.process([purchase("c", 0, 1)])
    tokens = tokens_of(service)
    with served(service) as site, listening_to(site.as_(tokens["operator"])) as stream:
        stream.next()
        was = site.world.tokens.get("operator")
        assert was is not None
        value = {"v": 1, "name": "operator", "role": "viewer", "hash": was.hash, "at": was.at, "by": was.by}
        site.log.append([Append(topic=topic_of("s"), records=[(b"operator", json.dumps(value).encode())], partition=0)])
        assert ends(stream)


def test_live_alerts_of_an_open_service_end_with_the_first_token(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process([purchase("c", 0, 1)])
    with served(service) as site, listening_to(site) as stream:
        stream.next()
        assert run("tokens", "add", service.config, "anna").exit_code == 0
        assert ends(stream)


def test_a_job_is_cancelled_with_the_token_that_began_it(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    tokens_of(service)
    with served(service) as site:

        def work(on_progress: OnProgress) -> None:
            while True:
                on_progress(0.1, None)
                time.sleep(0.01)

        gone, kept = (site.world.jobs.start("backtest", name, work) for name in ("author", "operator"))
        assert run("tokens", "remove", service.config, "author").exit_code == 0
        wait_for(lambda: gone.state == "cancelled")
        assert kept.state == "running"


# ---------------------------------------------------------------- sessions


def test_a_cookie_is_an_opaque_id_that_ends(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    tokens = tokens_of(service)
    with served(service) as site, page_of(site) as page:
        answer = page.post("/api/v1/session", json={"token": tokens["author"]})
        name, _, rest = answer.headers["set-cookie"].partition("=")
        session, *flags = [part.strip().lower() for part in rest.split(";")]
        assert name == "samovar-s"
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(flags)
        assert "secure" not in flags  # it came without TLS
        assert role_of(page) == "author"
        given = page.cookies[name]
        assert tokens["author"] not in answer.headers["set-cookie"]
        whole = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert given.encode() not in whole
        assert session not in whole.decode("latin-1").lower()
        for cookie in (tokens["author"], hash_of(given), hash_of(tokens["author"]), given[:-1], "x" * 43, ""):
            found = site.client.get("/api/v1/me", headers={"cookie": f"{name}={cookie}"})
            assert found.json()["role"] is None, cookie
        assert site.as_(given).ask("GET", "/status").status_code == 401  # a session is not a token
        page.post("/api/v1/session", json={"token": tokens["author"]})
        assert page.cookies[name] != given  # every login has its own
        stolen = {"cookie": f"{name}={given}"}
        assert site.client.get("/api/v1/me", headers=stolen).json()["role"] is None
        now = page.cookies[name]
        page.delete("/api/v1/session")
        assert site.client.get("/api/v1/me", headers={"cookie": f"{name}={now}"}).json()["role"] is None


def test_a_session_ends_with_its_token_and_a_new_one_of_that_name_does_not_revive_it(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process([purchase("c", 0, 1)])
    tokens = tokens_of(service)
    with served(service) as site, page_of(site, tokens["author"]) as page:
        assert role_of(page) == "author"
        with page.stream("GET", "/api/v1/alerts/live") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            assert run("tokens", "remove", service.config, "author").exit_code == 0
            list(lines)  # it ends
        assert role_of(page) is None
        assert run("tokens", "add", service.config, "author", "--role", "operator").exit_code == 0
        wait_for(lambda: site.world.tokens.get("author"))
        assert role_of(page) is None


def test_a_session_ends_after_its_time_and_when_it_is_not_used(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "http: {session: 10m, session_idle: 2m}\n")
    tokens_of(service)
    minute = 60_000
    with served(service) as site:
        world, now = site.world, 1_000_000_000
        token = world.tokens.get("viewer")
        assert token is not None

        def role(given: str, at_ms: int) -> Role | None:
            found = world.sessions.who(given, at_ms)
            return None if found is None else found.role

        idle = world.sessions.open(token, None, now)
        used = world.sessions.open(token, None, now)
        assert role(idle, now + 2 * minute - 1) is Role.VIEWER
        assert role(idle, now + 5 * minute) is None
        assert [role(used, now + n * minute) for n in range(10)] == [Role.VIEWER] * 10
        assert role(used, now + 10 * minute) is None
        world.sessions.open(token, None, now + 11 * minute)
        assert len(world.tokens.sessions) == 1  # the others were swept, in the topic as well
        assert len(load_tokens(site.log, "s").sessions) == 1
        for n in range(MOST_PER_TOKEN + 5):
            world.sessions.open(token, None, now + 11 * minute + n)
        assert len(world.tokens.sessions) == MOST_PER_TOKEN


def test_a_login_is_good_on_every_node_and_goes_with_what_is_forwarded(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process([purchase("open", 400, 1), purchase("open", 500, 3)])
    tokens = tokens_of(service)
    with two_nodes(service) as (asked, owner), page_of(asked, tokens["viewer"]) as page:
        session = {"cookie": f"{cookie_of(asked.world)}={page.cookies['samovar-s']}"}
        assert owner.client.get("/api/v1/me", headers=session).json()["role"] == "viewer"
        found = page.get("/api/v1/keys/open").json()
        assert found["held"][0]["rules"]
        assert found["missing"] == []
        page.delete("/api/v1/session")
        wait_for(lambda: owner.client.get("/api/v1/me", headers=session).json()["role"] is None)


def test_live_alerts_end_when_the_session_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.05)
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "http: {session: 2s}\n")
    service.process([purchase("c", 0, 1)])
    tokens = tokens_of(service)
    with served(service) as site, page_of(site, tokens["viewer"]) as page:
        with page.stream("GET", "/api/v1/alerts/live") as stream:
            assert stream.status_code == 200
            list(stream.iter_lines())  # it ends
        assert role_of(page) is None


def test_an_ended_session_does_not_come_back_by_an_older_record(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    tokens_of(service)
    with opened(service.settings) as log:
        tokens = load_tokens(log, "s")
        value = {"v": 1, "token": "viewer", "token_hash": "h", "at": 1, "seen": 1}
        record = (b"#session:abc", json.dumps(value).encode())
        tokens.fold([record])
        assert "abc" in tokens.sessions
        tokens.end_session("abc")
        tokens.fold([record])
        assert "abc" not in tokens.sessions


def test_the_start_line_says_how_many_tokens_there_are(tmp_path: Path) -> None:
    service: Service = make(tmp_path / "s")
    with opened(service.settings) as log:
        none = tokens_text(access.ensure_access(service.settings, log))
        assert none == "no API tokens: anyone on this machine is operator"
        add_token(service.settings, log, "anna", Role.VIEWER, "test")
        assert tokens_text(load_tokens(log, "s")) == "1 API token"
        add_token(service.settings, log, "berta", Role.VIEWER, "test")
        assert tokens_text(load_tokens(log, "s")) == "2 API tokens"
        assert not audit.has(log, service.settings, access.MADE)  # that is the command's to write
