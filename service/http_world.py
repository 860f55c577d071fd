"""What all requests share: the service, its log, the index of alerts, the threads that follow and watch. Made once."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from samovar.changelog.errors import Refused
from samovar.changelog.log import Log
from samovar.service import access
from samovar.service.access import LOCAL, NOBODY, Role, Tokens, Who
from samovar.service.access_masks import Masks
from samovar.service.alerts_index import AlertsIndex
from samovar.service.alerts_index_follow import Follower
from samovar.service.api_live import Hub
from samovar.service.http_events import Events
from samovar.service.http_jobs import Jobs
from samovar.service.http_metrics import Requests
from samovar.service.http_place import Place
from samovar.service.http_rules import RuleShelf
from samovar.service.http_stores import StorePool
from samovar.service.http_tail import Tail
from samovar.service.http_watch import Watch
from samovar.service.own_topics import ensure_topic
from samovar.service.settings_models import ServiceFile
from samovar.service.sinks import Sinks
from samovar.service.topics import Role as TopicRole
from samovar.service.topics import ensure


class World:
    """The source of truth for what the HTTP process knows. `start` begins its threads, `close` ends them."""

    def __init__(
        self, settings: ServiceFile, log: Log, place: Place, *, watch_every_s: float = 2.0, slot: int = 0
    ) -> None:
        self.settings, self.log, self.place = settings, log, place
        self.host = socket.gethostname()
        self.hub = Hub()
        self.events = Events(settings, log, Tail(log, {stream.topic for stream in settings.streams.values()}))
        self.shelf = RuleShelf(settings, log)
        self.watch = Watch(settings, log, watch_every_s)
        self.jobs = Jobs()
        self.requests = Requests()
        self.sinks = Sinks(settings, log, slot)
        self.stores = StorePool()
        self.index = AlertsIndex(index_path(settings, place.port), settings.alerts.topic)
        self.tokens: Tokens = Tokens()
        self.redriving = threading.Lock()
        self.live_texts: OrderedDict[tuple[str, bool], str] = OrderedDict()  # made once for all who listen
        self.follower = Follower(settings, log, self.index, self.hub.publish)

    def start(self) -> None:
        """Topics first: without the alerts' there is nothing to follow."""
        ensure(self.log, self.settings, stages=False)
        self.tokens = access.ensure_access(self.settings, self.log)
        refuse_open(self.place, self.tokens)
        with suppress(Refused):  # without it alerts cannot be labelled, and that is said then
            ensure_topic(self.settings, self.log, TopicRole.LABELS)
        topic = access.topic_of(self.settings.service)
        self.follower = Follower(self.settings, self.log, self.index, self.hub.publish, {topic: self.tokens.fold})
        self.follower.start()
        self.watch.start()
        self.sinks.start()

    def close(self) -> None:
        self.jobs.close()
        self.sinks.close()
        self.watch.close()
        self.follower.close()
        self.shelf.close()
        self.events.close()
        self.stores.close()
        self.index.close()

    # ------------------------------------------------------------ who asks

    @property
    def is_open(self) -> bool:
        """No token was ever made, and only this machine can ask: whoever does is the operator."""
        return self.place.is_local and not len(self.tokens)

    def who(self, token: str | None) -> Who:
        if token is not None:
            return self.tokens.who(token) or (LOCAL if self.is_open else NOBODY)
        return LOCAL if self.is_open else NOBODY

    def masks(self, who: Who) -> Masks:
        return Masks(self.settings, None if who.may("pii") else self.tokens.mask_secret or b"none")


def refuse_open(place: Place, tokens: Tokens) -> None:
    """Others may reach it only with tokens."""
    if not place.is_local and not len(tokens):
        raise Refused(
            "access-required",
            f"{place.host} can be reached by others, and there is no API token yet",
            f"Make one first: `samovar tokens add CONFIG NAME --role {Role.OPERATOR.word}`; or bind 127.0.0.1.",
        )


def index_path(settings: ServiceFile, port: int) -> Path:
    """Beside the state, a file a port: no two processes of a machine share one."""
    if port == 0:
        return Path(tempfile.mkdtemp(prefix="samovar-alerts-")) / "alerts.db"
    return settings.state.parent / "http" / f"alerts-{port}.db"
