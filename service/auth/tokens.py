"""Who may do what: API tokens with roles, and logins of browsers. Format 1.

A compacted topic of one partition: `{service}-access`.

A record's key is the token's name; its value JSON, with the token only as its hash:

    {"v": 1, "name", "role": viewer | author | operator, "hash": SHA-256 as hex, "at": epoch ms, "by"}

A token has 256 random bits, so that a plain hash is enough: there is nothing to guess. It is shown once, when it is
made. Further records, whose keys no token can have:

    #mask            {"v": 1, "secret"}: of pseudonyms (samovar.service.masking.fields), the same on all nodes
    #closed          {"v": 1, "at"}: a token was made. Written before the first one and never deleted: from then on no
                     tokens means nobody, after any compaction and on every node
    #session:HASH    {"v": 1, "token", "token_hash", "at", "seen"}: a browser's login

A browser's cookie holds the session's id, 256 random bits; the topic has its hash, so that every node knows it and
nobody who reads the log can use it. A session ends by logging out, some time after it began, some time after it was
last used, and with its token. Each login has a new id, and ends the session that the browser had before.

Every node follows the topic: a token that is removed is refused within a second or so. A record that cannot be read
gives nobody anything. Where the topic itself was lost, the audit trail still says that a token was made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Append, Log, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.common.suggest import did_you_mean
from samovar.service.auth import audit
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import TopicRole, access_topic, ensure_topic

FORMAT = 1
PREFIX = "smv_"
MASK = "#mask"
CLOSED = "#closed"
SESSION = "#session:"
MADE = "token added"  # as the audit trail has it
MOST_PER_TOKEN = 50  # the one that was used least recently makes room
SWEPT_MOST = 1_000  # that expired, deleted by a login
ID_CHARACTERS = 43  # of 32 bytes
WAIT_S = 1.0  # for a session that another node opened this moment
WAITING_MOST = 4  # requests that wait so: an id that is made up must not take all threads
ENDED_KEPT = 10_000  # sessions that ended here, so that an older record cannot bring one back
LOGGER = logging.getLogger("samovar.access")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")


class Role(IntEnum):
    """Each role may do what the one before it may. An operator also sees what is marked `pii`."""

    VIEWER = 1
    AUTHOR = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


WORDS = tuple(role.word for role in Role)

# What a role may, as pages ask for it.
RIGHTS = {
    "read": Role.VIEWER,
    "label": Role.AUTHOR,
    "rules": Role.AUTHOR,
    "ingest": Role.OPERATOR,
    "operate": Role.OPERATOR,
    "pii": Role.OPERATOR,
}


@dataclass(frozen=True, kw_only=True)
class ApiToken:
    """A token as it is kept."""

    name: str
    role: Role
    hash: str
    at: int
    by: str

    def data(self) -> dict[str, Any]:
        """For people: without the hash."""
        return {"name": self.name, "role": self.role.word, "at": self.at, "by": self.by}


@dataclass(frozen=True)
class Principal:
    """The caller. Without a role they may only log in."""

    name: str | None
    role: Role | None

    def may(self, right: str) -> bool:
        return self.role is not None and self.role >= RIGHTS[right]

    @property
    def rights(self) -> list[str]:
        return [right for right in RIGHTS if self.may(right)]


NOBODY = Principal(None, None)
LOCAL = Principal("local", Role.OPERATOR)  # on this machine, where there is no token at all


def topic_of(service: str) -> str:
    return access_topic(service).name


def role_of(word: str) -> Role:
    if word not in WORDS:
        hint = did_you_mean(word, WORDS) or f"Roles are {', '.join(WORDS)}."
        raise Refused("unknown-role", f"there is no role `{word}`", hint)
    return Role[word.upper()]


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# ---------------------------------------------------------------- what the topic says


@dataclass(frozen=True, kw_only=True)
class BrowserSession:
    """A browser's login with a token, by the hash of its id. It is worth what the token is worth now."""

    hash: str
    token: str
    token_hash: str
    at: int
    seen: int

    def record(self) -> tuple[bytes, bytes]:
        """As the topic has it."""
        value = {"v": FORMAT, "token": self.token, "token_hash": self.token_hash, "at": self.at, "seen": self.seen}
        return f"{SESSION}{self.hash}".encode(), json.dumps(value).encode()


class Tokens:
    """All tokens and sessions as of the last record folded. Threads may share it: a change replaces the whole."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, ApiToken] = {}
        self._by_hash: Mapping[str, ApiToken] = {}
        self.sessions: Mapping[str, BrowserSession] = {}  # by the hash of their ids
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._changed = threading.Condition()
        self.was_made = False  # a token, at any time: without one left, nobody may do anything
        self.mask_secret: bytes | None = None
        self.next = 0  # the offset after the last record
        self.on_change: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def all(self) -> list[ApiToken]:
        return sorted(self._by_name.values(), key=lambda token: token.name)

    def get(self, name: str) -> ApiToken | None:
        return self._by_name.get(name)

    def named_by(self, text: str) -> ApiToken | None:
        """The token of this text. Looked up by its hash, and compared in constant time all the same."""
        wanted = hash_of(text)
        found = self._by_hash.get(wanted)
        return found if found is not None and hmac.compare_digest(found.hash, wanted) else None

    def who(self, text: str) -> Principal | None:
        """Whose token this is."""
        found = self.named_by(text)
        return None if found is None else Principal(found.name, found.role)

    def token_of(self, session: BrowserSession) -> ApiToken | None:
        """The token that a session was opened with: none where that was removed, also where its name was used again."""
        found = self._by_name.get(session.token)
        return found if found is not None and hmac.compare_digest(found.hash, session.token_hash) else None

    def wait_for_session(self, hashed: str, timeout_s: float) -> None:
        """For one that another node may have opened this moment."""
        with self._changed:
            self._changed.wait_for(lambda: hashed in self.sessions, timeout_s)

    def fold(self, pairs: Iterable[tuple[bytes | None, bytes | None]], after: int = 0) -> None:
        """Takes records of the topic, up to the offset `after`."""
        with self._changed:
            tokens, sessions = dict(self._by_name), dict(self.sessions)
            for key, value in pairs:
                name = (key or b"").decode("utf-8", "replace")
                try:
                    self._fold_one(name, value, tokens, sessions)
                except (ValueError, KeyError, TypeError, AttributeError, Refused) as error:
                    LOGGER.warning("the record `%s` of the access topic cannot be read: %s", name[:80], error)
                    tokens.pop(name, None)
            self._put(tokens, sessions)
            self.next = max(self.next, after)
            self._changed.notify_all()
        self.on_change()

    def _fold_one(
        self, name: str, value: bytes | None, tokens: dict[str, ApiToken], sessions: dict[str, BrowserSession]
    ) -> None:
        is_session, hashed = name.startswith(SESSION), name.removeprefix(SESSION)
        if not is_session and name != MASK:
            self.was_made = True  # also where it is a token no more, or one that only a newer version can read
        if name == CLOSED:
            return
        if value is None:
            (sessions if is_session else tokens).pop(hashed, None)
            return
        raw = json.loads(value)
        if name == MASK:
            self.mask_secret = bytes.fromhex(raw["secret"])
            return
        if is_session and hashed in self._ended:
            return
        if raw["v"] > FORMAT:
            hint = "Use the version that wrote it, or a newer one."
            raise Refused("format-newer", "it was written by a newer version of Samovar", hint)
        if is_session:
            found = BrowserSession(
                hash=hashed, token=raw["token"], token_hash=raw["token_hash"], at=int(raw["at"]), seen=int(raw["seen"])
            )
            sessions[hashed] = max(sessions.get(hashed, found), found, key=lambda each: each.seen)
        else:
            tokens[name] = ApiToken(
                name=raw["name"], role=role_of(raw["role"]), hash=str(raw["hash"]), at=raw["at"], by=raw["by"]
            )

    def _put(self, tokens: Mapping[str, ApiToken], sessions: Mapping[str, BrowserSession]) -> None:
        self._by_name, self.sessions = tokens, sessions
        self._by_hash = {token.hash: token for token in tokens.values()}

    def end_session(self, hashed: str) -> None:
        """Forgets a session at once, whatever older record is still on its way."""
        with self._changed:
            self._ended[hashed] = None
            while len(self._ended) > ENDED_KEPT:
                self._ended.popitem(last=False)
            self.sessions = {each: session for each, session in self.sessions.items() if each != hashed}
        self.on_change()

    def renew(self, found: Tokens) -> None:
        """Becomes what the topic holds now: what was deleted from it while nobody read is gone here, too."""
        with self._changed:
            kept = {hashed: each for hashed, each in found.sessions.items() if hashed not in self._ended}
            self._put(found._by_name, kept)
            self.was_made = self.was_made or found.was_made
            self.mask_secret = found.mask_secret or self.mask_secret
            self.next = found.next
            self._changed.notify_all()
        self.on_change()


def load_tokens(log: Log, service: str) -> Tokens:
    """All that is in the topic now."""
    found, at = Tokens(), TopicPartition(topic_of(service), 0)
    if at.topic in log.topics([at.topic]):
        for records in read_all(log, at):
            found.fold(records.pairs(), records.next)
    return found


# ---------------------------------------------------------------- changing them


def ensure_access(settings: ServiceFile, log: Log) -> Tokens:
    """Makes the topic where it is missing, with a secret for pseudonyms in it.

    A topic that says nothing of tokens may be one that was deleted and made again: then the audit trail says so, and
    the topic is told once more.
    """
    found = _ensure_secret(settings, log)
    if not found.was_made and audit.has(log, settings, MADE):
        log.append([Append(topic=topic_of(settings.service), records=[_closing_record()], partition=0)])
        found = load_tokens(log, settings.service)
    return found


def _ensure_secret(settings: ServiceFile, log: Log) -> Tokens:
    ensure_topic(settings, log, TopicRole.ACCESS)
    found = load_tokens(log, settings.service)
    if found.mask_secret is None:
        value = json.dumps({"v": FORMAT, "secret": secrets.token_hex(32)}).encode()
        log.append([Append(topic=topic_of(settings.service), records=[(MASK.encode(), value)], partition=0)])
        found = load_tokens(log, settings.service)  # another one may have been first, and the last one counts
    return found


def _closing_record() -> tuple[bytes, bytes]:
    return CLOSED.encode(), json.dumps({"v": FORMAT, "at": int(time.time() * 1000)}).encode()


def add_token(settings: ServiceFile, log: Log, name: str, role: Role, by: str) -> str:
    """Make a token and give it: this is the only time that anybody sees it."""
    if not _NAME.match(name):
        hint = "Write 1 to 64 letters, digits, `.`, `_`, `@` or `-`: anna, or deploy-bot."
        raise Refused("bad-token-name", f"`{name[:80]}` cannot be a token's name", hint)
    known = _ensure_secret(settings, log)
    if known.get(name) is not None:
        hint = f"Remove it first: `samovar tokens remove CONFIG {name}`; or choose another name."
        raise Refused("token-exists", f"there is a token `{name}` already", hint)
    token = PREFIX + secrets.token_urlsafe(32)
    value = {"v": FORMAT, "name": name, "role": role.word, "hash": hash_of(token)}
    packed = json.dumps({**value, "at": int(time.time() * 1000), "by": by}).encode()
    # First that there is one: whatever happens between the two, the API is not open any more.
    first = [] if known.was_made else [_closing_record()]
    log.append([Append(topic=topic_of(settings.service), records=[*first, (name.encode(), packed)], partition=0)])
    return token


def remove_token(settings: ServiceFile, log: Log, name: str) -> None:
    known = load_tokens(log, settings.service)
    if known.get(name) is None:
        names = [token.name for token in known.all]
        hint = did_you_mean(name, names) or "`samovar tokens list CONFIG` shows all."
        raise Refused("unknown-token", f"there is no token `{name[:80]}`", hint)
    log.append([Append(topic=topic_of(settings.service), records=[(name.encode(), None)], partition=0)])


# ---------------------------------------------------------------- logins of browsers


class Sessions:
    """What cookies are worth. Threads may share it."""

    def __init__(self, settings: ServiceFile, log: Log, tokens: Tokens) -> None:
        self._limits, self._log, self._tokens = settings.http, log, tokens
        self._waiting = threading.BoundedSemaphore(WAITING_MOST)
        self._topic = topic_of(settings.service)

    def open(self, token: ApiToken, before: str | None, now_ms: int) -> str:
        """Opens a session of a token, and returns its id, which is kept nowhere."""
        given = secrets.token_urlsafe(32)
        made = BrowserSession(hash=hash_of(given), token=token.name, token_hash=token.hash, at=now_ms, seen=now_ms)
        known = self._tokens.sessions
        expired = [each for each in known.values() if self._is_over(each, now_ms) or not self._tokens.token_of(each)]
        own = sorted((each for each in known.values() if each.token == token.name), key=lambda each: each.seen)
        gone = {each.hash for each in [*expired[:SWEPT_MOST], *own[: max(len(own) - MOST_PER_TOKEN + 1, 0)]]}
        gone |= {hash_of(before)} & known.keys() if before else set()
        pairs = [made.record(), *((f"{SESSION}{hashed}".encode(), None) for hashed in gone)]
        self._log.append([Append(topic=self._topic, records=pairs, partition=0)])
        self._tokens.fold(pairs)
        return given

    def end(self, given: str) -> BrowserSession | None:
        """Ends a session, and returns which one it was."""
        found = self._tokens.sessions.get(hash_of(given))
        if found is not None:
            self._tokens.end_session(found.hash)
            self._log.append(
                [Append(topic=self._topic, records=[(f"{SESSION}{found.hash}".encode(), None)], partition=0)]
            )
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
                self._log.append([Append(topic=self._topic, records=[used], partition=0)])
        return who

    def who_has(self, given: str, now_ms: int) -> Principal | None:
        """Whose session this is, None where it is none or has ended."""
        found = self._tokens.sessions.get(hash_of(given))
        token = None if found is None or self._is_over(found, now_ms) else self._tokens.token_of(found)
        return None if token is None else Principal(token.name, token.role)

    def _is_over(self, session: BrowserSession, now_ms: int) -> bool:
        return now_ms - session.at >= self._limits.session_ms or now_ms - session.seen >= self._limits.session_idle_ms
