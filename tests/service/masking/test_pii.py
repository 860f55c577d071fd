"""What is marked `pii` reaches nobody who may not see it: not as it is, not computed, and not by asking cleverly."""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any
from urllib.parse import quote, unquote

import pytest

from samovar.changelog.log import TopicPartition
from samovar.service.masking.fields import HIDDEN
from tests.support.http_server import Served, listening_to, wait_for
from tests.support.marked_service import RULES, Planted, planted_site
from tests.support.small_service import run

Site = tuple[Served, dict[str, str], Planted]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """Two services that differ in marked values, and in their lengths, and in nothing else."""
    now_ms = int(time.time() * 1000) - 3_600_000
    one, other = Planted("one"), Planted("other", size=29)
    with (
        planted_site(tmp_path_factory.mktemp("one") / "s", one, now_ms) as first,
        planted_site(tmp_path_factory.mktemp("other") / "s", other, now_ms) as second,
    ):
        yield (*first, one), (*second, other)


# ---------------------------------------------------------------- everything that can be fetched


def params_of(site: Served) -> dict[str, Sequence[str]]:
    """What there is to ask for, as who asks sees it."""
    alerts = site.get("/alerts?limit=500")["alerts"]
    by_rule = {alert["rule"]: alert["id"] for alert in alerts}
    keys = [each["key_text"] for each in [*site.get("/keys")["keys"], *alerts]]
    return {
        "rule": list(RULES),
        "alert": [*by_rule.values(), alerts[0]["id"]],
        "key": list(dict.fromkeys([*keys, "US", "d1"])),
        "stream": ["purchase", "login", "transfer"],
    }


QUERIES = {
    "/alerts": ("limit=500", "limit=1", "rule=computing&limit=3"),
    "/alerts/values": tuple(
        f"rule={rule}&field={field}"
        for rule, fields in {"computing": "own upper part joined size account twice phone is_visa amount", "gone": "x",
                             "visits": "cards least account", "wired": "ibans least most",
                             "wiring": "iban name part notes secret photo cents parties amount",
                             "testing": "card spent cards duration_ms"}.items()
        for field in fields.split()
    ),
    "/keys/{key}/why": tuple(f"rule={rule}" for rule in RULES),
    "/rules/{rule}/diff": ("a=1&b=1",),
    "/sessions": ("rule=visits",),
}  # fmt: skip
NAMES = {"/lists/{name}": ("watched", "known"), "/views/{name}": ("known", "unknown")}
NOT_FETCHED = {"/alerts/live", "/jobs/{job}"}  # asked for apart


def fetched(site: Served, role: str) -> Iterator[tuple[str, str]]:
    """Every GET of the OpenAPI document, with all that there is in the place of names."""
    known = params_of(site)
    for path, methods in site.client.get("/api/v1/openapi.json").json()["paths"].items():
        own = path.removeprefix("/api/v1")
        if "get" not in methods or own in NOT_FETCHED:
            continue
        spots = re.findall(r"[^{]*\{\w+\}", own)  # up to each name, as NAMES has them
        names = [spot[spot.index("{") + 1 : -1] for spot in spots]
        choices = [NAMES.get(spot) or known[name] for spot, name in zip(spots, names, strict=True)]
        for values in product(*choices):
            path_ = own
            for name, value in zip(names, values, strict=True):
                path_ = path_.replace(f"{{{name}}}", quote(value, safe=""))
            for query in QUERIES.get(own, ("",)):
                answer = site.ask("GET", f"{path_}?{query}")
                assert answer.status_code < 500 or own in ("/ready", "/caught-up"), (path_, query, answer.text)
                yield f"{role} {own} {' '.join(values)} {query}", answer.text
    with listening_to(site, params={"from": "0"}) as stream:
        stream.next()
        for number in range(10):
            yield f"{role} live {number}", json.dumps(stream.next())
    for page in ("/", "/alerts", "/keys", "/metrics"):
        yield f"{role} {page}", site.client.get(page, headers=site.headers).text


def posted(site: Served, role: str) -> Iterator[tuple[str, str]]:
    """What a role may run and look at without changing anything."""
    for name in ("known", "unknown"):
        yield f"{role} view {name}", site.ask("POST", f"/views/{name}/query", json={}).text
    for name, text in RULES.items():
        given = text % ("x", "y") if "%s" in text else text
        body = {"text": given.replace(f"rule: {name}", f"rule: new-{name}")}
        for path in ("check", "explain", "test", "plan", "try", "backtest"):
            more = {"minutes": 600} if path == "try" else {}
            answer = site.ask("POST", f"/rules/{path}", json=body | more)
            yield f"{role} {path} {name}", answer.text
            if path == "backtest" and answer.status_code == 202:
                yield f"{role} backtest of {name}", result_of(site, answer.json()["job"])


def result_of(site: Served, job: str) -> str:
    wait_for(lambda: site.get(f"/jobs/{job}")["state"] != "running")
    found = site.get(f"/jobs/{job}")
    assert found["state"] == "done", found
    return json.dumps(found)


def printed(site: Served) -> Iterator[tuple[str, str]]:
    """Reports that are passed on, and what is typed in front of others."""
    folder = site.service.config.parent
    for rule in ("testing", "computing", "visits", "watching", "wiring", "wired"):
        text = (folder / "rules" / f"{rule}.yml").read_text()
        # Under another name all that it finds is new, and shown; with another condition some of it is gone, too.
        changed = {f"new-{rule}": text.replace(f"rule: {rule}", f"rule: new-{rule}"), rule: text.replace("200", "800")}
        for name, own in changed.items():
            file, out = folder / f"{name}.yml", folder / "report.html"
            file.write_text(own)
            said = run("rules", "backtest", file, site.service.config, "--html", out)
            assert said.exit_code == 0, said.output
            yield f"report {name}", out.read_text()
            yield f"backtest {name}", said.output
            yield f"backtest --json {name}", run("rules", "backtest", file, site.service.config, "--json").output
    yield "dlq show", run("dlq", "show", site.service.config).output


def readings(text: str) -> str:
    """A text in every way in which somebody could read it, in small letters."""
    found = [text, unquote(text), html.unescape(text)]
    with_escapes = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    found.append(with_escapes.replace("\\/", "/"))
    for part in set(re.findall(r"[A-Za-z0-9+/_-]{8,}={0,2}", text)):
        padded = part.replace("-", "+").replace("_", "/").rstrip("=")
        try:
            found.append(base64.b64decode(padded + "=" * (-len(padded) % 4)).decode("latin-1"))
        except (binascii.Error, ValueError):
            continue
    for part in set(re.findall(r"(?:[0-9a-fA-F]{2}){5,}", text)):
        found.append(bytes.fromhex(part).decode("latin-1"))
    whole = "\n".join(found).lower()
    return f"{whole}\n{whole[::-1]}"


def everything(site: Site) -> dict[str, str]:
    served, tokens, _ = site
    viewer, author = (served.as_(tokens[role]) for role in ("viewer", "author"))
    return dict(fetched(viewer, "viewer")) | dict(posted(author, "author")) | dict(printed(served))


def test_no_five_characters_of_a_marked_value_reach_who_may_not_see_it(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    pieces = one[2].pieces()
    for name, text in everything(one).items():
        read = readings(text)
        found = [piece for piece in pieces if piece in read]
        assert not found, (name, found[:3], text[:2_000])


def test_the_canaries_sing_for_who_may_see_them(sites: tuple[Site, Site]) -> None:
    """What the test above does not find is there to be found."""
    (site, tokens, planted), _ = sites
    operator = site.as_(tokens["operator"])
    read = readings("\n".join(dict(fetched(operator, "operator")).values()))
    missing = {name for name, value in planted.values.items() if str(value).lower() not in read}
    assert not missing


# ---------------------------------------------------------------- answers that depend on it

VOLATILE = {
    "seconds",
    "events_per_s",
    "state_bytes",
    "bytes",
    "logged",
    "left_s",
    "rate",
    "job",
    "time",
    "told",
    "since",
}


def same(value: Any) -> Any:
    """What two services must have in common: without pseudonyms, ids and the time of day, and without order, which is
    that of pseudonyms where it could tell anything.
    """
    if isinstance(value, Mapping):
        return {same(name): same(inner) for name, inner in value.items() if name not in VOLATILE}
    if isinstance(value, list | tuple):
        return sorted((same(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(value, str):
        text = re.sub(r"pii:[0-9a-f]{16}", "pii:*", value)
        return re.sub(r"\b[0-9a-f]{16,32}\b", "*", text)
    return value


def asked_of(site: Site, role: str, method: str, path: str, body: Any = None) -> Any:
    served, tokens, _ = site
    answer = served.as_(tokens[role]).ask(method, path, json=body)
    assert answer.status_code < 500, (path, answer.text)
    return answer.status_code, same(answer.json())


def questions(probe: str, number: int, id: str) -> Iterator[tuple[str, str, str, Any]]:
    """What somebody would ask who guesses: role, method, path, body."""
    for text in (probe, probe[:5], probe[0], f"card={probe}", json.dumps([probe]), json.dumps([probe, "US"])):
        name = quote(text, safe="")
        for path in (f"/alerts?key={name}", f"/keys/{name}", f"/keys/{name}/events", f"/keys/{name}?rule=computing"):
            yield "viewer", "GET", path, None
        for rule in RULES:
            yield "viewer", "GET", f"/keys/{name}/why?rule={rule}", None
            yield "viewer", "GET", f"/keys/{name}?rule={rule}", None
            yield "viewer", "GET", f"/alerts?key={name}&rule={rule}", None
        yield "viewer", "POST", "/keys/resolve", {"key": text}
    yield "viewer", "GET", f"/alerts/{id}", None
    yield "author", "PUT", f"/alerts/{id}/label", {"label": "open"}
    for view in ("known", "unknown"):
        for column in ("card", "shouted", "said", "spent", "n"):
            yield "viewer", "POST", f"/views/{view}/query", {"order": column}
            for op in ("==", "!=", "<", "<=", ">", ">="):
                where = [{"column": column, "op": op, "value": probe}]
                yield "viewer", "POST", f"/views/{view}/query", {"where": where}
    for text in rules_that_compare(probe, number):
        for path in ("try", "plan", "publish", "backtest", "preview"):
            yield "author", "POST", f"/rules/{path}", {"text": text}
    for act in ("add", "remove"):
        yield "author", "POST", f"/lists/watched/{act}", {"items": [probe]}
        yield "author", "POST", "/lists/watched/plan", {act: [probe]}
    match = "  sequence by card with maxspan=1m\n    [purchase where card in $watched] as p"
    listed = f"rule: x\nlists: {{watched: [a]}}\nmatch: |\n{match}"
    tested = f'{listed}\ntests:\n  - name: t\n    events: ["+0s purchase {{card: {probe}}}"]\n    expect: [{{}}]\n'
    for path in ("check", "explain", "test"):
        yield "author", "POST", f"/rules/{path}", {"text": tested}


def rules_that_compare(probe: str, number: int) -> Iterator[str]:
    conditions = [
        f'card == "{probe}"', f'card != "{probe}"', f'card < "{probe}"', f'card >= "{probe[:3]}"',
        f'card like "{probe[:2]}*"', f'card regex "^{probe[0]}"', f'card in ("{probe}", "x")', f'card : "{probe[:3]}*"',
        f'upper(card) == "{probe.upper()}"', f'substring(card, 0, 1) == "{probe[0]}"', "length(card) > 25",
        f'starts_with(card, "{probe[:2]}")', f"account > {number}", f"account * 2 > {number}", "card == country",
        f'seen(country, 1d where card == "{probe}")', f'not (card == "{probe}")', f'user.email > "{probe}"',
        f"max(account, 1d) > {number}", "string(account) == card", f'coalesce(card, "x") == "{probe}"',
        f'concat(card, "") == "{probe}"', f'(card == "{probe}") == (amount > 0)', f'prev(card, 1d) == "{probe}"',
        f'contains(user.email, "{probe[0]}")', f"number(account) > {number}", f"-account < -{number}",
    ]  # fmt: skip
    for condition in conditions:
        yield f"rule: x\nmatch: |\n  sequence by country with maxspan=1m\n    [purchase where {condition}] as p"
    for by, having in (
        ("substring(card, 0, 1)", "count() > 1"), ("upper(card)", "count() > 1"), ("country", "avg(account) > 5"),
        ("country", f'max(card) > "{probe}"'), ("country", f"sum(account) > {number}"),
        ("country", f'last(card) == "{probe}"'),
    ):  # fmt: skip
        text = f"rule: x\nmatch: |\n  aggregate by {by} over 1h\n    [purchase]\n    having {having}"
        yield text
    joined = (
        "  sequence by card with maxspan=1h\n    [purchase where true] as p\n    [purchase where true] as q by guess"
    )
    yield f"rule: x\nlet:\n  guess: '\"{probe}\"'\nmatch: |\n{joined}"
    yield f"rule: x\nlet: {{guess: country}}\nmatch: |\n{joined}"
    listed = "  sequence by country with maxspan=1h\n    [purchase where guess in $watched] as p"
    yield f"rule: x\nlists: {{watched: [a]}}\nlet:\n  guess: '\"{probe}\"'\nmatch: |\n{listed}"
    match = "  sequence by country with maxspan=1m\n    [purchase where is_it] as p"
    yield f'rule: x\nlet: {{is_it: card == "{probe}"}}\nmatch: |\n{match}'


def test_no_answer_depends_on_a_marked_value(sites: tuple[Site, Site]) -> None:
    """The same questions to both services, with the values of the first in them: whatever is compared with those, the
    answers would differ.
    """
    one, other = sites
    served, _, planted = one
    number = planted.number("account of a")
    with served.service.log() as log:
        reader = log.reader({TopicPartition("s-alerts", 0): 0})
        records = [json.loads(value) for found in reader.poll(1_000, 5) for _, value in found.pairs() if value]
        reader.close()
    id = next(each["id"] for each in records if each["rule"] == "testing")
    asked = 0
    for role, method, path, body in questions(planted.text("a"), number, id):
        here, there = (asked_of(site, role, method, path, body) for site in (one, other))
        assert here == there, (role, method, path, body)
        asked += 1
    assert asked > 200


def test_what_can_be_fetched_is_the_same_for_other_values(sites: tuple[Site, Site]) -> None:
    one, other = sites
    for path in ("/alerts?limit=500", "/keys", "/sessions?rule=visits", "/dead-letters", "/late", "/rules", "/lists",
                 "/streams/purchase/events?limit=500", "/streams/transfer/events?limit=500",
                 "/alerts/precision", "/lists/watched", "/lists/known", "/views",
                 *(f"/alerts/values?{query}" for query in QUERIES["/alerts/values"])):  # fmt: skip
        here, there = (asked_of(site, "viewer", "GET", path) for site in sites)
        assert here == there, path
    for view in ("known", "unknown"):
        here, there = (asked_of(site, "viewer", "POST", f"/views/{view}/query", {}) for site in sites)
        assert here == there, view
    for site in (one, other):
        viewer = site[0].as_(site[1]["viewer"])
        keys = [each["key_text"] for each in viewer.get("/keys")["keys"]]
        assert keys == sorted(keys)  # and not in the order of what they stand for


# ---------------------------------------------------------------- what they may still do


def test_a_rule_is_tried_where_it_compares_marked_fields_with_nothing_but_each_other(sites: tuple[Site, Site]) -> None:
    (site, tokens, _), _ = sites
    author = site.as_(tokens["author"])
    conditions = (
        "amount > 200", "card != null and amount > 200", "not seen(card, 1h)", "prev(card, 1h) == card",
        "distinct(account, 1h) < 5",
    )  # fmt: skip
    for condition in conditions:
        text = f"rule: x\nmatch: |\n  sequence by card with maxspan=1m\n    [purchase where {condition}] as p\n"
        emits = "emit: {card: p.card, upper: upper(p.card), cards: distinct(p.card)}\n"
        found = author.post("/rules/try", {"text": text + emits, "minutes": 600})
        assert found["matches"] > 0, condition
        assert found["alerts"][0]["emit"]["upper"] == HIDDEN
        assert found["alerts"][0]["emit"]["card"] == found["alerts"][0]["key_text"]


def test_a_refusal_names_the_field_and_who_may(sites: tuple[Site, Site]) -> None:
    (site, tokens, _), _ = sites
    text = 'rule: x\nmatch: |\n  sequence by country with maxspan=1m\n    [purchase where card like "4*"] as p\n'
    for path in ("try", "plan", "publish", "backtest", "preview"):
        refused = site.as_(tokens["author"]).post(f"/rules/{path}", {"text": text}, 403)
        assert refused["code"] == "pii-comparison"
        assert "`card`" in refused["title"]
        assert "operator" in refused["hint"]
    assert site.as_(tokens["operator"]).post("/rules/try", {"text": text, "minutes": 600})["events"] > 0
    viewer = site.as_(tokens["viewer"])
    assert "`card`" in viewer.post("/views/known/query", {"order": "card"}, 403)["title"]
    picked = {"order": "n", "desc": True, "where": [{"column": "n", "op": ">", "value": 1}]}
    found = viewer.post("/views/known/query", picked)
    assert [row[4] for row in found["rows"]] == [3, 2]


def test_pseudonyms_lead_everywhere_that_keys_do(sites: tuple[Site, Site]) -> None:
    (site, tokens, planted), _ = sites
    viewer, operator = site.as_(tokens["viewer"]), site.as_(tokens["operator"])
    ref = operator.post("/keys/resolve", {"key": planted.text("a")})["key_ref"]
    assert ref.startswith("pii:")
    for who in (viewer, operator):
        assert who.get(f"/keys/{ref}")["held"]
        assert who.get(f"/keys/{ref}/events")["events"]
        assert who.get(f"/keys/{ref}/why?rule=testing")["matches"] == 2
        assert who.get("/alerts", params={"key": ref, "rule": "testing"})["total"] == 2
    alert = viewer.get("/alerts", params={"rule": "testing"})["alerts"][0]
    assert viewer.get(f"/alerts/{alert['id']}")["why"]["matches"] >= 1
    assert operator.get(f"/alerts/{alert['id']}")["key_ref"] == alert["key_text"]
    assert viewer.get("/alerts", params={"key": "US"})["total"] > 0  # countries are not marked
    assert viewer.get("/keys/d1/events")["events"]
