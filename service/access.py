"""Who may do what: API tokens with roles, in a compacted topic of one partition, `{service}-access`. Format 1.

A record's key is the token's name; its value JSON, with the token only as its hash:

    {"v": 1, "name", "role": viewer | author | operator, "hash": SHA-256 as hex, "at": epoch ms, "by"}

A token has 256 random bits, so that a plain hash is enough: there is nothing to guess. It is shown once, when it is
made. The record `#mask` holds the secret of pseudonyms (samovar.service.access_masks), so that all nodes give the same.
Every node follows the topic: a token that is removed is refused within a second or so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.errors import Refused
from samovar.changelog.log import Append, Log, Records, TopicPartition
from samovar.patterns.nearest import did_you_mean
from samovar.service.own_topics import ensure_topic
from samovar.service.settings_models import ServiceFile
from samovar.service.side_topics import access_topic
from samovar.service.topics import Role as TopicRole

FORMAT = 1
PREFIX = "smv_"
MASK = "#mask"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")


class Role(IntEnum):
    """Each may what the one before it may. An operator also sees what is marked `pii`."""

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


@dataclass(frozen=True)
class Token:
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
class Who:
    """Whoever asks. Without a role they may nothing but log in."""

    name: str | None
    role: Role | None

    def may(self, right: str) -> bool:
        return self.role is not None and self.role >= RIGHTS[right]

    @property
    def rights(self) -> list[str]:
        return [right for right in RIGHTS if self.may(right)]


NOBODY = Who(None, None)
LOCAL = Who("local", Role.OPERATOR)  # on this machine, where there is no token at all


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


class Tokens:
    """All tokens as of the last record that was folded. Threads may share it: a change replaces the whole."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, Token] = {}
        self._roles: Mapping[str, Who] = {}
        self.mask_secret: bytes | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def all(self) -> list[Token]:
        return sorted(self._by_name.values(), key=lambda token: token.name)

    def get(self, name: str) -> Token | None:
        return self._by_name.get(name)

    def who(self, token: str) -> Who | None:
        """Whose token this is. Looked up by its hash, and compared in constant time all the same."""
        wanted = hash_of(token)
        found = self._roles.get(wanted)
        return found if found is not None and hmac.compare_digest(hash_of(token), wanted) else None

    def fold(self, records: Records) -> None:
        tokens = dict(self._by_name)
        for key, value in records.pairs():
            name = (key or b"").decode("utf-8", "replace")
            if name == MASK:
                self.mask_secret = None if value is None else bytes.fromhex(json.loads(value)["secret"])
            elif value is None:
                tokens.pop(name, None)
            else:
                tokens[name] = _unpacked(value)
        self._by_name = tokens
        self._roles = {token.hash: Who(token.name, token.role) for token in tokens.values()}


def _unpacked(value: bytes) -> Token:
    raw = json.loads(value)
    if raw["v"] > FORMAT:
        raise Refused(
            "format-newer",
            "a token was written by a newer version of Samovar",
            "Use the version that wrote it, or a newer one.",
        )
    return Token(raw["name"], role_of(raw["role"]), raw["hash"], raw["at"], raw["by"])


def load_tokens(log: Log, service: str) -> Tokens:
    """All that is in the topic now."""
    found, at = Tokens(), TopicPartition(topic_of(service), 0)
    if at.topic in log.topics([at.topic]):
        for records in read_all(log, at):
            found.fold(records)
    return found


# ---------------------------------------------------------------- changing them


def ensure_access(settings: ServiceFile, log: Log) -> Tokens:
    """The topic, made where it is missing, with a secret for pseudonyms in it."""
    ensure_topic(settings, log, TopicRole.ACCESS)
    found = load_tokens(log, settings.service)
    if found.mask_secret is None:
        value = json.dumps({"v": FORMAT, "secret": secrets.token_hex(32)}).encode()
        log.append([Append(topic_of(settings.service), [(MASK.encode(), value)], 0)])
        found = load_tokens(log, settings.service)  # another one may have been first, and the last one counts
    return found


def add_token(settings: ServiceFile, log: Log, name: str, role: Role, by: str) -> str:
    """Make a token and give it: this is the only time that anybody sees it."""
    if not _NAME.match(name):
        hint = "Write 1 to 64 letters, digits, `.`, `_`, `@` or `-`: anna, or deploy-bot."
        raise Refused("bad-token-name", f"`{name[:80]}` cannot be a token's name", hint)
    known = ensure_access(settings, log)
    if known.get(name) is not None:
        hint = f"Remove it first: `samovar tokens remove CONFIG {name}`; or choose another name."
        raise Refused("token-exists", f"there is a token `{name}` already", hint)
    token = PREFIX + secrets.token_urlsafe(32)
    value = {"v": FORMAT, "name": name, "role": role.word, "hash": hash_of(token)}
    packed = json.dumps({**value, "at": int(time.time() * 1000), "by": by}).encode()
    log.append([Append(topic_of(settings.service), [(name.encode(), packed)], 0)])
    return token


def remove_token(settings: ServiceFile, log: Log, name: str) -> None:
    known = load_tokens(log, settings.service)
    if known.get(name) is None:
        names = [token.name for token in known.all]
        hint = did_you_mean(name, names) or "`samovar tokens list CONFIG` shows all."
        raise Refused("unknown-token", f"there is no token `{name[:80]}`", hint)
    log.append([Append(topic_of(settings.service), [(name.encode(), None)], 0)])
