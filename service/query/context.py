"""What questions about keys, states and alerts are answered from. The HTTP process has one for all of its requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from samovar.changelog.log import Log
from samovar.service.alerts.index import AlertsIndex
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import Lineage, Masks
from samovar.service.query.events import Events
from samovar.service.query.rule_cache import RuleCache
from samovar.service.query.store_pool import StorePool
from samovar.service.query.tailing_reader import TailingReader


class QueryContext:
    """A service, its log, the rules at work, the stores of this machine, and the index of alerts."""

    def __init__(self, settings: ServiceFile, log: Log, index: Path) -> None:
        self.settings, self.log = settings, log
        self.events = Events(
            settings=settings, log=log, tail=TailingReader(log, {stream.topic for stream in settings.streams.values()})
        )
        self.rule_cache = RuleCache(settings, log)
        self.stores = StorePool()
        self.index = AlertsIndex(index, settings.alerts.topic)
        self.lineage = Lineage(settings)
        self.aliases = Aliases()

    def close(self) -> None:
        self.rule_cache.close()
        self.events.close()
        self.stores.close()
        self.index.close()


REMEMBERED = 200_000


class Aliases:
    """Keys by their pseudonyms, as far as this process has met them. Threads may share it."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, alias: str) -> str | None:
        with self._lock:
            return self._keys.get(alias)

    def remember(self, masks: Masks, keys: Iterable[str]) -> None:
        made = {alias: key for key in keys if (alias := str(masks.pseudonym(key))) != key}
        with self._lock:
            self._keys.update(made)
            while len(self._keys) > REMEMBERED:
                self._keys.popitem(last=False)
