"""What all requests share: the service, its log, the index of alerts, the threads that follow and watch. Made once."""

from __future__ import annotations

import secrets
import socket
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import httpx2

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.service.alerts.follow import Follower
from samovar.service.auth.audit import AuditWriter
from samovar.service.auth.tokens import LOCAL, NOBODY, Principal, Role, Sessions, Tokens, ensure_access
from samovar.service.config.addresses import HttpAddress
from samovar.service.config.models import ServiceFile, TlsSettings
from samovar.service.http.broadcaster import Broadcaster
from samovar.service.http.jobs import Jobs
from samovar.service.http.previews import Previews
from samovar.service.http.server import client_context
from samovar.service.http.sinks import Sinks
from samovar.service.http.status_poller import StatusPoller
from samovar.service.masking.fields import Masks
from samovar.service.query.context import QueryContext
from samovar.service.topology.topics import TopicRole, ensure, ensure_topic
from samovar.service.views.serving import ViewServer

ANSWER_S = 5.0  # of another node
AT_ONCE = 8  # questions to other nodes


@dataclass(frozen=True)
class Credential:
    """What somebody shows: an API token, or the id of a browser's session."""

    token: str | None = None
    session: str | None = None


class Peers:
    """The other nodes' HTTP processes: one client and one pool of threads for all questions to them.

    It keeps connections but no cookies, which would be another caller's with the next question.
    """

    def __init__(self, tls: TlsSettings | None) -> None:
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        verify = client_context(tls)
        self.client = httpx2.Client(
            timeout=ANSWER_S, trust_env=False, follow_redirects=False, verify=verify, cookies=no_cookies
        )
        self.pool = ThreadPoolExecutor(AT_ONCE, "peers")

    def close(self) -> None:
        self.pool.shutdown()
        self.client.close()


class AppState(QueryContext):
    """The source of truth for what the HTTP process knows. `start` begins its threads, `close` ends them."""

    def __init__(
        self, settings: ServiceFile, log: Log, place: HttpAddress, *, watch_every_s: float = 2.0, slot: int = 0
    ) -> None:
        # Next to the state, a file per port: no two processes of a machine share one.
        index = settings.state.parent / "http" / f"alerts-{place.port}.db"
        if place.port == 0:
            index = Path(tempfile.mkdtemp(prefix="samovar-alerts-")) / "alerts.db"
        super().__init__(settings, log, index)
        self.place = place
        self.host = socket.gethostname()
        self.broadcaster = Broadcaster()
        self.watch = StatusPoller(settings, log, watch_every_s)
        self.jobs = Jobs()
        self.previews = Previews(settings, log, self.jobs)
        self.requests: Counter[tuple[str, int]] = Counter()  # answers by method and status
        self.sinks = Sinks(settings, log, slot)
        self.tokens = Tokens()
        self.sessions = Sessions(settings, log, self.tokens)
        self.trail = AuditWriter(settings, log)
        self.peers = Peers(settings.http.tls)
        self.served_views = ViewServer(settings=settings, log=log)
        self._no_secret = secrets.token_bytes(32)  # until the topic's own is read
        self.redriving = threading.Lock()
        self.live_texts: OrderedDict[tuple[str, bool], str] = OrderedDict()  # made once for all who listen
        self.follower = Follower(settings, log, self.index, self.broadcaster.publish, self.tokens)

    def start(self) -> None:
        """Topics first: without the alerts' there is nothing to follow."""
        ensure(self.log, self.settings, stages=False)
        self.tokens.renew(ensure_access(self.settings, self.log))
        refuse_open(self.settings, self.place, self.tokens)
        self.tokens.on_change = self._access_changed
        with suppress(Refused):  # without it alerts cannot be labelled, and that is said then
            ensure_topic(self.settings, self.log, TopicRole.LABELS)
        self.follower.start()
        self.watch.start()
        self.sinks.start()
        self.trail.start()

    def close(self) -> None:
        self.jobs.close()
        self.trail.close()
        self.sinks.close()
        self.watch.close()
        self.follower.close()
        self.peers.close()
        self.served_views.close()
        super().close()

    # ------------------------------------------------------------ who asks

    @property
    def is_open(self) -> bool:
        """No token was ever made, and only this machine can ask: anyone who does is the operator."""
        return is_private(self.settings, self.place) and not self.tokens.was_made

    def who(self, given: Credential, *, is_new: bool = True) -> Principal:
        """Who asks. A new request may wait a moment for a session that was opened elsewhere."""
        found = None
        if given.token is not None:
            found = self.tokens.who(given.token)
        elif given.session is not None:
            found = (self.sessions.who if is_new else self.sessions.who_has)(given.session, now_ms())
        return found or (LOCAL if self.is_open else NOBODY)

    def _access_changed(self) -> None:
        """From any thread: what a removed token began ends."""
        self.broadcaster.recheck()
        self.jobs.cancel_of(lambda name: self.tokens.was_made and self.tokens.get(name) is None)

    def masks(self, who: Principal) -> Masks:
        return Masks(self.lineage, self.tokens.mask_secret or self._no_secret, who.may("pii"))


def now_ms() -> int:
    return int(time.time() * 1000)


def is_private(settings: ServiceFile, place: HttpAddress) -> bool:
    """Whether only this machine can ask: a proxy asks for others."""
    return place.is_local and not settings.http.trusted_proxies


def refuse_open(settings: ServiceFile, place: HttpAddress, tokens: Tokens) -> None:
    """Others may reach it only with tokens."""
    if is_private(settings, place) or len(tokens):
        return
    behind = f"{place.host} is behind a proxy (http.trusted_proxies)" if place.is_local else place.host
    raise Refused(
        "access-required",
        f"{behind} can be reached by others, and there is no API token {'left' if tokens.was_made else 'yet'}",
        f"Make one first: `samovar tokens add CONFIG NAME --role {Role.OPERATOR.word}`; or bind 127.0.0.1.",
    )
