"""Logins of browsers. A cookie holds an opaque id of 256 random bits; what it is worth is in the access topic, under
the hash of the id (samovar.service.auth.tokens), so that every node knows it and nobody who reads the log can use
it.

A session ends by logging out, some time after it began, some time after it was last used, and with its token. Each
login has a new id, and ends the session that the browser had before.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable
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

    def __init__(self, settings: ServiceFile, log: Log) -> None:
        self._settings, self._log = settings, log
        self._waiting = threading.BoundedSemaphore(WAITING_MOST)
        self._topic = topic_of(settings.service)

    def open(self, tokens: Tokens, token: ApiToken, before: str | None, now_ms: int) -> str:
        """A new session of a token; the id, which is kept nowhere."""
        given = secrets.token_urlsafe(32)
        made = BrowserSession(hash_of(given), token.name, token.hash, now_ms, now_ms)
        gone = {each.hash for each in self._expired(tokens, now_ms)} | self._too_many(tokens, token)
        gone |= {hash_of(before)} & {each.hash for each in tokens.sessions} if before else set()
        pairs = [_pair(made), *((f"{SESSION}{hashed}".encode(), None) for hashed in gone)]
        self._log.append([Append(self._topic, pairs, 0)])
        tokens.fold_pairs(pairs)
        return given

    def end(self, tokens: Tokens, given: str) -> BrowserSession | None:
        """End a session; which one it was."""
        found = tokens.session(hash_of(given))
        if found is not None:
            tokens.end([found.hash])
            self._log.append([Append(self._topic, [(f"{SESSION}{found.hash}".encode(), None)], 0)])
        return found

    def who(self, tokens: Tokens, given: str, now_ms: int) -> Principal | None:
        """Who asks with this id. May wait a moment, and write down that the session was used."""
        hashed = hash_of(given)
        if tokens.session(hashed) is None and len(given) == ID_CHARACTERS:
            self._wait(tokens, hashed)
        found = tokens.session(hashed)
        who = self.who_has(tokens, given, now_ms)
        if found is not None and who is not None and now_ms - found.seen > self._settings.http.session_idle_ms // 4:
            self._touch(tokens, replace(found, seen=now_ms))
        return who

    def who_has(self, tokens: Tokens, given: str, now_ms: int) -> Principal | None:
        """Whose session this is, None where it is none or has ended."""
        found = tokens.session(hash_of(given))
        token = None if found is None or self._is_over(found, now_ms) else tokens.token_of(found)
        return None if token is None else Principal(token.name, token.role)

    def _wait(self, tokens: Tokens, hashed: str) -> None:
        if self._waiting.acquire(blocking=False):
            try:
                tokens.wait_for_session(hashed, WAIT_S)
            finally:
                self._waiting.release()

    def _touch(self, tokens: Tokens, session: BrowserSession) -> None:
        tokens.fold_pairs([_pair(session)])  # first: it is due no more, however many ask at once
        with suppress(LogUnavailable, Fenced, Refused):  # it then ends the earlier on other nodes
            self._log.append([Append(self._topic, [_pair(session)], 0)])

    def _is_over(self, session: BrowserSession, now_ms: int) -> bool:
        limits = self._settings.http
        return now_ms - session.at >= limits.session_ms or now_ms - session.seen >= limits.session_idle_ms

    def _expired(self, tokens: Tokens, now_ms: int) -> Iterable[BrowserSession]:
        found = [each for each in tokens.sessions if self._is_over(each, now_ms) or tokens.token_of(each) is None]
        return found[:SWEPT_MOST]

    def _too_many(self, tokens: Tokens, token: ApiToken) -> set[str]:
        own = sorted((each for each in tokens.sessions if each.token == token.name), key=lambda each: each.seen)
        return {each.hash for each in own[: max(len(own) - MOST_PER_TOKEN + 1, 0)]}


def _pair(session: BrowserSession) -> tuple[bytes, bytes]:
    return f"{SESSION}{session.hash}".encode(), json.dumps(session.data()).encode()
