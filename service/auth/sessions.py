"""Logins of browsers. A cookie holds an opaque id of 256 random bits; what it is worth is in the access topic, under
the hash of the id (samovar.service.auth.tokens), so that every node knows it and nobody who reads the log can use it.

A session ends by logging out, some time after it began, some time after it was last used, and with its token. Each
login has a new id, and ends the session that the browser had before.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from dataclasses import replace

from samovar.changelog.log import Append, Log
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.auth.tokens import SESSION, ApiToken, BrowserSession, Principal, Tokens, hash_of, topic_of
from samovar.service.config.models import ServiceFile

MOST_PER_TOKEN = 50  # the one that was used least recently makes room
SWEPT_MOST = 1_000  # that expired, deleted by a login
ID_CHARACTERS = 43  # of 32 bytes
WAIT_S = 1.0  # for a session that another node opened this moment
WAITING_MOST = 4  # requests that wait so: an id that is made up must not take all threads


class Sessions:
    """What cookies are worth. Threads may share it."""

    def __init__(self, settings: ServiceFile, log: Log, tokens: Tokens) -> None:
        self._limits, self._log, self._tokens = settings.http, log, tokens
        self._waiting = threading.BoundedSemaphore(WAITING_MOST)
        self._topic = topic_of(settings.service)

    def open(self, token: ApiToken, before: str | None, now_ms: int) -> str:
        """Opens a session of a token, and returns its id, which is kept nowhere."""
        given = secrets.token_urlsafe(32)
        made = BrowserSession(hash_of(given), token.name, token.hash, now_ms, now_ms)
        known = self._tokens.sessions
        expired = [each for each in known.values() if self._is_over(each, now_ms) or not self._tokens.token_of(each)]
        own = sorted((each for each in known.values() if each.token == token.name), key=lambda each: each.seen)
        gone = {each.hash for each in [*expired[:SWEPT_MOST], *own[: max(len(own) - MOST_PER_TOKEN + 1, 0)]]}
        gone |= {hash_of(before)} & known.keys() if before else set()
        pairs = [made.record(), *((f"{SESSION}{hashed}".encode(), None) for hashed in gone)]
        self._log.append([Append(self._topic, pairs, 0)])
        self._tokens.fold(pairs)
        return given

    def end(self, given: str) -> BrowserSession | None:
        """Ends a session, and returns which one it was."""
        found = self._tokens.sessions.get(hash_of(given))
        if found is not None:
            self._tokens.end_session(found.hash)
            self._log.append([Append(self._topic, [(f"{SESSION}{found.hash}".encode(), None)], 0)])
        return found

    def who(self, given: str, now_ms: int) -> Principal | None:
        """Who asks with this id. May wait a moment, and write down that the session was used."""
        hashed = hash_of(given)
        is_unknown = hashed not in self._tokens.sessions and len(given) == ID_CHARACTERS
        if is_unknown and self._waiting.acquire(blocking=False):
            try:
                self._tokens.wait_for_session(hashed, WAIT_S)
            finally:
                self._waiting.release()
        found = self._tokens.sessions.get(hashed)
        who = self.who_has(given, now_ms)
        if found is not None and who is not None and now_ms - found.seen > self._limits.session_idle_ms // 4:
            used = replace(found, seen=now_ms).record()
            self._tokens.fold([used])  # first: it is due no more, however many ask at once
            with suppress(LogUnavailable, Fenced, Refused):  # it then ends the earlier on other nodes
                self._log.append([Append(self._topic, [used], 0)])
        return who

    def who_has(self, given: str, now_ms: int) -> Principal | None:
        """Whose session this is, None where it is none or has ended."""
        found = self._tokens.sessions.get(hash_of(given))
        token = None if found is None or self._is_over(found, now_ms) else self._tokens.token_of(found)
        return None if token is None else Principal(token.name, token.role)

    def _is_over(self, session: BrowserSession, now_ms: int) -> bool:
        return now_ms - session.at >= self._limits.session_ms or now_ms - session.seen >= self._limits.session_idle_ms
