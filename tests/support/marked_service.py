"""A service with marked values planted wherever one can be: in fields, nested, under flat names, in lists of lists, in
JSON and in Avro; in keys, messages, emits, computed and not; in dead letters, late events, lists, labels, views, and an
alert of a rule that nobody knows. Two of them with other values and the same everything else must look the same to who
may not see them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from samovar.changelog.log import Append
from samovar.service.auth.tokens import Role, add_token
from samovar.service.topology.logs import opened
from samovar.service.views.store import ViewManifest, ViewStore
from samovar.tasks.model.clock import SetClock
from tests.support.avro_making import encoded
from tests.support.http_server import Served, served
from tests.support.small_service import START, Service, catch_up

CONFIG = """
http: {requests_per_s: 100000}
service: s
streams:
  purchase:
    key: card
    partitions: 1
    slack: 2s
    schema:
      {card: string, amount: double, country: string, account: long, user.email: string, contacts: any, secret: any}
    pii: [card, account, user.email, contacts.phone, secret]
  login:
    key: device
    partitions: 1
    pii: [name]
  transfer:
    key: iban
    partitions: 1
    slack: 2s
    format: avro
    schema: transfer.avsc
    pii: [iban, holder.name, notes, secret, photo, alias, cents, parties.phone]
"""
TRANSFER = {
    "type": "record",
    "name": "Transfer",
    "fields": [
        {"name": "iban", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "holder", "type": {"type": "record", "name": "Holder", "fields": [
            {"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}},
        {"name": "notes", "type": {"type": "array", "items": "string"}},
        {"name": "secret", "type": {"type": "map", "values": "string"}},
        {"name": "photo", "type": "bytes"},
        {"name": "alias", "type": ["null", "string"], "default": None},
        {"name": "cents", "type": "long"},
        {"name": "parties", "type": {"type": "array", "items": {"type": "record", "name": "Party", "fields": [
            {"name": "phone", "type": "string"}, {"name": "role", "type": "string"}]}}},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
RULES = {
    "testing": """
rule: testing
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=2..
    [purchase where amount > 200] as big
message: "{card} bought for {big.amount}, twice {card}"
emit: {card: big.card, spent: sum(probe.amount), cards: distinct(probe.card)}
""",
    "computing": """
rule: computing
match: |
  sequence by country with maxspan=1m
    [purchase where amount > 200] as p
message: "{upper(p.card)} {substring(p.card, 0, 7)} {p.user.email} {p.amount}"
emit:
  own: p.card
  upper: upper(p.card)
  part: substring(p.card, 2, 9)
  joined: concat("x", p.user.email)
  size: length(p.card)
  account: p.account
  twice: p.account * 2
  phone: p.contacts
  is_visa: starts_with(p.card, "q")
  amount: p.amount
""",
    "shouting": """
rule: shouting
match: |
  sequence by card with maxspan=1m
    [purchase where amount > 200] as p
message: "{upper(card)} and {substring(card, 0, 6)}"
""",
    "mailing": """
rule: mailing
match: |
  sequence by user.email, country with maxspan=1m
    [purchase where amount > 200 and seen(account, 1d) and distinct(card, 1d) < 9] as p
emit: {mail: p.user.email}
""",
    "visits": """
rule: visits
match: |
  session by card with gap=30m
    [purchase where amount > 0] as p
emit: {cards: values(p.card), least: min(p.card), account: max(p.account)}
""",
    "watching": """
rule: watching
lists: {watched: [%s]}
match: |
  sequence by card with maxspan=1m
    [purchase where card in $watched or card == "%s" or max(account, 1d) > 5 or prev(card, 1d) == card] as p
""",
    "wiring": """
rule: wiring
match: |
  sequence by iban with maxspan=10m
    [transfer where amount > 100] as t
message: "{t.iban} {upper(t.holder.name)} {t.alias} {t.cents} {t.photo} {t.amount}"
emit:
  iban: t.iban
  name: t.holder.name
  part: substring(t.alias, 0, 7)
  notes: t.notes
  secret: t.secret
  photo: t.photo
  cents: t.cents
  parties: t.parties
  amount: t.amount
""",
    "wired": """
rule: wired
match: |
  session by holder.name with gap=5m
    [transfer where amount > 0] as t
emit: {ibans: values(t.iban), least: min(t.alias), most: max(t.cents)}
""",
    "logins": """
rule: logins
lists: {known: [d9]}
match: |
  sequence by device with maxspan=5m
    [login where ok == false and device not in $known] as a
    [login where ok == true] as b
message: "{b.name} came in at {device}"
""",
}
LINEAGE = {
    "card": {"reads": ["purchase.card"], "plain": True},
    "shouted": {"reads": ["purchase.card"], "plain": False},
    "said": {"reads": ["alerts.message"], "plain": True},
    "spent": {"reads": ["purchase.amount"], "plain": False},
    "n": {"reads": [], "plain": True},
}
ALPHABET = "qxzjkvwGHPM"


@dataclass
class Planted:
    """The values of one service, by what they are."""

    seed: str
    size: int = 24
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def text(self, name: str) -> str:
        """The same for the same name."""
        if name not in self.values:
            self.values[name] = "".join(self._random.choices(ALPHABET, k=self.size))
        return str(self.values[name])

    def number(self, name: str) -> int:
        if name not in self.values:
            self.values[name] = self._random.randrange(10**14, 10**15)
        return int(self.values[name])

    def pieces(self) -> set[str]:
        """All runs of five characters; of digits, which stand everywhere, of eight."""
        runs = [(str(value), 8 if isinstance(value, int) else 5) for value in self.values.values()]
        return {text[at : at + size].lower() for text, size in runs for at in range(len(text) - size + 1)}


def purchase(planted: Planted, card: str, second: float, amount: float, country: str = "US") -> dict[str, Any]:
    return {
        "card": planted.text(card),
        "amount": amount,
        "country": country,
        "account": planted.number(f"account of {card}"),
        "user": {"email": planted.text(f"mail of {card}"), "age": 7},
        "user.email": planted.text(f"flat mail of {card}"),
        "contacts": [[{"phone": planted.text(f"phone of {card}"), "kind": "home"}, planted.text("bare")], []],
        "contacts.phone": {"inner": planted.text("flat phone")},
        "secret": {planted.text("name in a map"): [planted.text("in a map")]},
        "ts": START + int(second * 1000),
    }


def events_of(planted: Planted) -> list[dict[str, Any]]:
    amounts = [(0, 1), (1, 1.5), (2, 900), (30, 1), (31, 1), (32, 700), (60, 3)]
    found = [purchase(planted, card, at + n / 10, amount) for n, card in enumerate("abc") for at, amount in amounts]
    later = [purchase(planted, card, 10_800 + n, 1) for n, card in enumerate("abca")]  # closes sessions, opens others
    return [*sorted(found, key=lambda event: event["ts"]), *later]


def transfers_of(planted: Planted) -> list[tuple[bytes, bytes]]:
    """Avro, of which one message is late, one is cut, one goes on behind its end, and one is none at all."""
    found = []
    for number, (second, amount) in enumerate([(0, 5.0), (1, 900.0), (30, 700.0), (10_800, 1.0), (1, 3.0)]):
        event = {
            "iban": planted.text(f"iban {number % 2}"),
            "amount": amount,
            "holder": {"name": planted.text(f"holder {number % 2}"), "age": 7},
            "notes": [planted.text("note"), planted.text("another note")],
            "secret": {planted.text("name in an avro map"): planted.text("in an avro map")},
            "photo": planted.text("photo").encode(),
            "alias": planted.text("alias"),
            "cents": planted.number("cents"),
            "parties": [{"phone": planted.text("phone of a party"), "role": "payer"}],
            "ts": START + second * 1000,
        }
        found.append((str(event["iban"]).encode(), encoded(TRANSFER, event)))
    key, whole = found[0]
    bare = planted.text("no avro").encode()
    return [*found, (key, whole[:-20]), (key, whole + planted.text("behind its end").encode()), (key, bare)]


def make(folder: Path, planted: Planted, now_ms: int) -> Service:
    (folder / "rules").mkdir(parents=True)
    for name, text in RULES.items():
        given = text % (planted.text("a"), planted.text("b")) if "%s" in text else text
        (folder / "rules" / f"{name}.yml").write_text(given)
    (folder / "service.yml").write_text(CONFIG)
    (folder / "transfer.avsc").write_text(json.dumps(TRANSFER))
    service = Service(folder / "service.yml", SetClock(now_ms))
    _publish_view(service, planted)
    service.produce(events_of(planted))
    bad = planted.text("bad")
    wrong = {**purchase(planted, "a", 5, 5), "ts": "never"}
    logins = [
        (b"d1", {"device": "d1", "name": planted.text("person"), "ok": ok, "ts": START + at}) for at, ok in LOGINS
    ]
    with service.log() as log:
        log.append([Append(topic="purchase", records=[(planted.text("a").encode(), f"{bad} is no json".encode())])])
        log.append([Append(topic="purchase", records=[(planted.text("a").encode(), json.dumps(wrong).encode())])])
        log.append(
            [
                Append(
                    topic="purchase",
                    records=[(planted.text("a").encode(), json.dumps([planted.text("in a list")]).encode())],
                )
            ]
        )
        log.append([Append(topic="transfer", records=transfers_of(planted))])
        log.append([Append(topic="login", records=[(key, json.dumps(event).encode()) for key, event in logins])])
    with service.container() as container:
        service.produce([purchase(planted, "c", 1, 3)])  # late
        catch_up(container)
        for _ in range(3):
            service.clock.pass_ms(6_000)
            catch_up(container)
    with service.log() as log:
        log.append([Append(topic="s-alerts", records=[(b"x", json.dumps(_foreign(planted)).encode())], partition=0)])
    return service


LOGINS = [(0, False), (60_000, True), (10_801_000, False)]  # the last one so that event time goes on


def _foreign(planted: Planted) -> dict[str, Any]:
    told = {"rule": "gone", "version": "0" * 16, "id": "ab" * 16, "key": {"whom": planted.text("foreign key")}}
    times = {"start": START, "end": START, "at": START + 5, "steps": {}}
    return told | times | {"message": planted.text("foreign message"), "emit": {"x": planted.text("foreign emit")}}


def _publish_view(service: Service, planted: Planted) -> None:
    folder = service.config.parent / "views"
    folder.mkdir()
    names, cards = ("known", "unknown"), [planted.text(card) for card in "abc"]
    rows: dict[str, list[Any]] = {
        "card": cards,
        "shouted": [card.upper() for card in cards],
        "said": [f"{card} bought" for card in cards],
        "spent": [1.0, 2.0, 3.0],
        "n": [1, 2, 3],
    }
    order = sorted(range(3), key=lambda row: cards[row])  # as a view with this key is written
    table = pa.table({name: [values[row] for row in order] for name, values in rows.items()})
    columns = {"card": "string", "shouted": "string", "said": "string", "spent": "double", "n": "bigint"}
    for name in names:
        sql = "select message as said, _key as card, count(1) as n from alerts group by all"
        (folder / f"{name}.yml").write_text(f"view: {name}\nsql: |\n  {sql}\nkey: card\n")
        store = ViewStore(service.settings.views.store, name)
        with store.writing():
            part = store.being_made(1)
            part.mkdir()
            pq.write_table(table, part / "part-0.parquet")
            lineage = LINEAGE if name == "known" else {}
            store.publish(
                ViewManifest(
                    view=name,
                    version=1,
                    digest="d",
                    made_ms=1,
                    kind="full",
                    rows=3,
                    sources={},
                    rules={},
                    columns=columns,
                    lineage=lineage,
                ),
                3,
            )


@contextmanager
def planted_site(folder: Path, planted: Planted, now_ms: int) -> Iterator[tuple[Served, dict[str, str]]]:
    """Served while a container holds its state; with a token per role, and an alert that was labelled."""
    service = make(folder, planted, now_ms)
    settings = service.settings
    with opened(settings) as log:
        tokens = {role.word: add_token(settings, log, role.word, role, "test") for role in Role}
    with served(service) as site:
        operator = site.as_(tokens["operator"])
        operator.caught_up()
        for alert in operator.get("/alerts", params={"rule": "testing"})["alerts"]:
            operator.put(f"/alerts/{alert['id']}/label", {"label": "confirmed", "note": "so it was"})
        yield site, tokens
