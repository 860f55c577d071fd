"""Requests made up from the OpenAPI document, as it allows them and as it does not, by every role and by nobody, to a
service that was lived in: none of them is a fault of ours, and every answer is as the document says.

SAMOVAR_FUZZ_REQUESTS=5000 (`make fuzz-http`) is the long form.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.support.http_server import Served
from tests.support.small_service import RULES, many
from tests.support.used_service import ABROAD, VISITS, lived

REQUESTS = int(os.environ.get("SAMOVAR_FUZZ_REQUESTS", "200"))
ANSWER_S = 60
NAMES = {  # what stands in paths, questions and bodies, so that what is behind a name is reached too
    "rule": ["testing", "countries", "visits", "abroad"],
    "key": ["c1", "c2", '["c3"]', "card=c4"],
    "stream": ["purchase"],
    "text": [ABROAD, VISITS, *RULES.values(), RULES["testing"].replace("runs=2..", "runs=3..")],
    "field": ["duration_ms", "paid"],
    "column": ["card", "purchases", "paid"],
    "order": ["card", "purchases", "paid"],
    "to": ["purchase"],
    "add": ["GB", "IT"],
    "remove": ["FR"],
    "items": ["FR", "GB", "IT"],
}
LISTS, VIEWS = ["far"], ["cards"]
UNREACHED = {  # these alone may never be answered with what was asked for
    "POST /views/{name}/refresh",  # would start Spark
    "GET /ready",  # nobody turns the container of the test
    "GET /caught-up",
    "GET /jobs/{job}",
    "DELETE /jobs/{job}",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    with lived(tmp_path_factory.mktemp("fuzz") / "s") as made:
        yield made


def test_no_request_is_a_fault(site: tuple[Served, dict[str, str]]) -> None:
    operator, tokens = site
    document = operator.client.get("/api/v1/openapi.json").json()
    alerts = [each["id"] for each in operator.get("/alerts?limit=5")["alerts"]]
    base = str(operator.client.base_url).rstrip("/")
    named = _named(document, NAMES | {"alert": alerts, "token": [tokens["viewer"]]})
    operations = list(zip(_operations(document), _operations(named), strict=True))
    share = max(REQUESTS // len(operations), 2)
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    with requests.Session() as session:
        for operation, known in operations:
            counted = seen[f"{operation.method.upper()} {operation.path.removeprefix('/api/v1')}"]
            _fuzz(session, operation, known, base, share, list(tokens.values()), counted)
    total = sum(seen.values(), Counter())
    assert total.total() >= min(REQUESTS, share * len(operations)) * 0.8, total
    assert total[200] > 0
    assert total[422] > 0
    if share >= 20:
        assert {name for name, counted in seen.items() if not counted.keys() & {200, 202, 204}} <= UNREACHED
    assert operator.get("/live") == {"live": True}


def _operations(document: dict[str, Any]) -> list[Any]:
    found: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    return [each.ok() for each in found]


def _named(document: dict[str, Any], names: dict[str, list[Any]]) -> dict[str, Any]:
    """The document with names that are there, in the place of any text at all."""
    found = deepcopy(document)
    for path, methods in found["paths"].items():
        own = names | {"name": LISTS if path.startswith("/api/v1/lists") else VIEWS}
        for operation in methods.values() if not path.endswith("/refresh") else ():
            for parameter in operation.get("parameters", ()):
                _narrow(parameter, "schema", own.get(parameter["name"]))
    events = found["paths"]["/api/v1/streams/{stream}/events"]["post"]["requestBody"]["content"]
    events["application/json"]["schema"] = {"enum": many(5)}
    bodies = found["components"]["schemas"]
    for schema in bodies.values():
        if schema.get("additionalProperties") is False:  # a body
            for name in schema["properties"]:
                _narrow(schema["properties"], name, names.get(name))
    bodies["RollingBack"]["properties"]["to"] = {"enum": [1, 2, None]}
    return found


def _narrow(holder: dict[str, Any], name: str, known: list[Any] | None) -> None:
    schema = holder[name]
    if known and schema.get("type") == "array":
        _narrow(schema, "items", known)
    elif known and any(each.get("type") == "string" for each in (schema, *schema.get("anyOf", ()))):
        holder[name] = {"enum": known}


def _fuzz(
    session: requests.Session, operation: Any, known: Any, base: str, share: int, tokens: list[str], seen: Counter[int]
) -> None:
    """As the document allows it, by name and by any text, and as it does not; mostly by one who may do all."""
    named = known.as_strategy(generation_mode=GenerationMode.POSITIVE)
    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    other = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    operator = tokens[-1]

    @settings(max_examples=share, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        case=st.one_of(named, named, allowed, other),
        token=st.sampled_from([operator, operator, operator, *tokens, None]),
    )
    def ask(case: Any, token: str | None) -> None:
        given_ = case.as_transport_kwargs(base_url=base)
        given_["headers"]["authorization"] = f"Bearer {token}"
        # Only looked at by its head: live alerts never end.
        with session.request(**given_, stream=True, timeout=ANSWER_S) as answer:
            seen[answer.status_code] += 1
            is_live = answer.headers.get("content-type", "").startswith("text/event-stream")
            told = "" if is_live else answer.text
        assert answer.status_code < 500 or answer.status_code == 503, (case.as_curl_command(), told)
        if not is_live:
            operation.validate_response(answer)

    ask()
