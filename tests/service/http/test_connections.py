"""Connections: clients that are slow or silent, TLS, and proxies that are declared or not."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from samovar.common.errors import Refused
from samovar.service.config.addresses import place_from
from samovar.service.config.loading import load_service
from samovar.service.config.models import TlsSettings
from samovar.service.http.server import client_context, server_context
from samovar.service.http.state import Peers
from tests.service.http.test_access import tokens_of
from tests.service.http.test_nodes import two_nodes
from tests.service.http.test_tokens import page_of, role_of
from tests.support.http_server import Served, listening_to, served, wait_for
from tests.support.small_service import Service, make, purchase, run_apart

LIMITS = "http: {header_timeout: 300ms, body_timeout: 300ms, max_connections: 20, requests_per_s: 100000}\n"
LEAST = "service: s\nstreams:\n  purchase: {key: card}\n"
HEAD = b"POST /api/v1/rules/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def with_http(service: Service, text: str) -> Service:
    service.config.write_text(service.config.read_text() + text)
    return service


# ---------------------------------------------------------------- slow clients


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that waits for nobody for long."""
    service = with_http(make(tmp_path_factory.mktemp("hurried") / "s"), LIMITS)
    service.process([purchase("c", 0, 1)])
    with served(service) as site:
        yield site


@contextmanager
def connected(site: Served) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", site.world.place.port), 30) as client:
        client.settimeout(30)
        yield client


def rest_of(client: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    try:
        while more := client.recv(65536):
            found += more
    except ConnectionResetError:
        pass
    return found


def dribbled(client: socket.socket, text: bytes) -> bool:
    """Whether the other side closed while one byte after the other was sent, for ever."""
    stop = time.monotonic() + 30
    client.settimeout(0.02)
    while time.monotonic() < stop:
        try:
            client.send(text)
            if client.recv(65536) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_who_sends_nothing_is_closed(hurried: Served) -> None:
    with connected(hurried) as client:
        assert rest_of(client).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("begun", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_headers_come_whole_in_time_or_not_at_all(hurried: Served, begun: bytes) -> None:
    with connected(hurried) as client:
        client.sendall(begun)
        assert dribbled(client, b"x")


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 100000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
)
def test_a_body_comes_whole_in_time_or_not_at_all(hurried: Served, framing: bytes) -> None:
    with connected(hurried) as client:
        client.sendall(HEAD + framing)
        assert dribbled(client, b" " if b"Length" in framing else b"1\r\n \r\n")


def test_a_second_request_is_timed_as_the_first(hurried: Served) -> None:
    ask = b"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(hurried) as client:
        client.sendall(ask)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET /api/v1/li")
        assert dribbled(client, b"x")


def test_whoever_is_quick_is_not_disturbed(hurried: Served) -> None:
    """A quick request, and an answer that goes on for longer than any of the times."""
    with listening_to(hurried) as stream:
        assert stream.next()["event"] == "hello"
        for _ in range(3):
            assert hurried.post("/rules/check", {"text": "x" * 100_000})["findings"]
        with connected(hurried) as another:  # which is closed after one of the times
            rest_of(another)
        hurried.service.process([purchase("c", second, amount) for second, amount in ((1, 1), (2, 900), (60, 3))])
        assert stream.next()["event"] == "alert"


def test_who_does_not_take_an_answer_is_closed(hurried: Served) -> None:
    ask = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(hurried) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            client.sendall(ask * 100_000)


def test_connections_have_a_bound_and_come_back(hurried: Served) -> None:
    held = [socket.create_connection(("127.0.0.1", hurried.world.place.port), 30) for _ in range(60)]
    try:
        refused = [client for client in held if b"408" not in rest_of(client)]
        assert len(refused) >= 35  # twenty were let in, and those were told that they were too slow
    finally:
        for client in held:
            client.close()
    wait_for(lambda: hurried.ask("GET", "/live").status_code == 200)


# ---------------------------------------------------------------- TLS


def made_certificate(folder: Path, name: str = "cert") -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    asked = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    asked += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*asked, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made_certificate(tmp_path_factory.mktemp("tls"))


def tls_of(cert: Path, key: Path, ca: Path | None = None) -> TlsSettings:
    given = {"cert": cert, "key": key, "ca": ca}
    return TlsSettings.model_validate({name: str(path) for name, path in given.items() if path is not None})


def with_tls(service: Service, certificate: tuple[Path, Path]) -> Service:
    cert, key = certificate
    return with_http(service, f"http: {{tls: {{cert: {cert}, key: {key}, ca: {cert}}}, header_timeout: 300ms}}\n")


def test_tls_is_by_settings_and_its_cookie_is_for_tls_only(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    service = with_tls(make(tmp_path / "s"), certificate)
    tokens = tokens_of(service)
    with served(service) as site, page_of(site) as page:
        assert site.world.place.advertised.startswith("https://")
        answer = page.post("/api/v1/session", json={"token": tokens["viewer"]})
        assert answer.status_code == 200
        assert re.search(r"; *secure(;|$)", answer.headers["set-cookie"].lower())
        assert role_of(page) == "viewer"
        port = site.world.place.port
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(f"http://127.0.0.1:{port}/live", trust_env=False)
    cert, key = certificate
    assert server_context(tls_of(cert, key)).minimum_version is ssl.TLSVersion.TLSv1_2


def test_nodes_ask_each_other_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    service = with_tls(make(tmp_path / "s"), certificate)
    service.process([purchase("open", 400, 1), purchase("open", 500, 3)])
    with two_nodes(service) as (asked, owner):
        assert owner.world.place.advertised.startswith("https://")
        found = asked.get("/keys/open")
        assert found["missing"] == []
        assert found["held"] == owner.get("/keys/open")["held"] != []
        asked.world.peers.close()
        asked.world.peers = Peers(None)  # whose word this certificate has not
        (missing, *_) = asked.get("/keys/open")["missing"]
        assert "does not answer" in missing["why"]


def test_a_handshake_that_is_never_finished_ends(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with served(with_tls(make(tmp_path / "s"), certificate)) as site, connected(site) as client:
        client.sendall(b"\x16\x03\x01")
        assert rest_of(client) == b""


def test_tls_files_that_do_not_fit_are_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    other = made_certificate(tmp_path, "other")[1]
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:x1234", "-out", str(locked)],
        check=True,
        capture_output=True,
    )
    for wrong in (tls_of(cert, other), tls_of(tmp_path / "none", key)):
        with pytest.raises(Refused) as refused:
            server_context(wrong)
        assert refused.value.code == "tls-files"
    with pytest.raises(Refused, match="password"):
        server_context(tls_of(cert, locked))
    with pytest.raises(Refused, match=r"tls\.ca"):
        client_context(tls_of(cert, key, key))
    service = with_http(make(tmp_path / "s"), f"http: {{tls: {{cert: {cert}, key: {other}}}}}\n")
    done = run_apart("serve", service.config, "--port", "0")
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "tls-files")


def test_an_address_says_whether_it_speaks_tls() -> None:
    assert place_from("8443", None, "https").advertised == "https://127.0.0.1:8443"


# ---------------------------------------------------------------- proxies


def rated(site: Served, **headers: str) -> int:
    """How many of forty requests at once were answered."""
    return sum(site.client.get("/api/v1/live", headers=headers).status_code == 200 for _ in range(40))


def test_a_declared_proxy_tells_whom_it_asks_for_and_how(tmp_path: Path) -> None:
    service = with_http(make(tmp_path / "s"), 'http: {trusted_proxies: ["127.0.0.0/8"], requests_per_s: 5}\n')
    tokens = tokens_of(service)
    with served(service) as site:
        own = str(site.client.base_url).rstrip("/")
        body, headers = {"token": tokens["viewer"]}, {"origin": own, "x-forwarded-for": "192.0.2.1"}
        plain = site.client.post("/api/v1/session", json=body, headers=headers)
        assert "secure" not in plain.headers["set-cookie"].lower()
        over_tls = site.client.post("/api/v1/session", json=body, headers={**headers, "x-forwarded-proto": "https"})
        assert "secure" in over_tls.headers["set-cookie"].lower()
        assert rated(site, **{"x-forwarded-for": "192.0.2.7"}) < 40
        assert site.client.get("/api/v1/live", headers={"x-forwarded-for": "192.0.2.8"}).status_code == 200
        # What a client wrote before the proxy added to it changes nothing: it is still who it is.
        assert site.client.get("/api/v1/live", headers={"x-forwarded-for": "1.1.1.1, 192.0.2.7"}).status_code == 429


def test_nobody_else_is_believed(tmp_path: Path) -> None:
    service = with_http(make(tmp_path / "s"), 'http: {trusted_proxies: ["192.0.2.0/24"], requests_per_s: 5}\n')
    tokens = tokens_of(service)
    with served(service) as site:
        headers = {"origin": str(site.client.base_url).rstrip("/"), "x-forwarded-proto": "https"}
        answer = site.client.post("/api/v1/session", json={"token": tokens["viewer"]}, headers=headers)
        assert "secure" not in answer.headers["set-cookie"].lower()
        others = [{"x-forwarded-for": f"198.51.100.{n}"} for n in range(40)]
        assert 429 in [site.client.get("/api/v1/live", headers=each).status_code for each in others]


def test_what_is_no_network_is_refused_in_words(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    for text in ("proxy.example", "10.0.0.1/8", "[7]"):
        service.config.write_text(
            f"service: s\nstreams:\n  purchase: {{key: card}}\nhttp: {{trusted_proxies: {text}}}\n"
        )
        with pytest.raises(Refused, match="not an address or network"):
            load_service(service.config)
    service.config.write_text(f"{LEAST}http: {{trusted_proxies: '::1'}}\n")
    assert load_service(service.config).http.trusted_proxies == ("::1/128",)
