"""Requests made up from the OpenAPI document, as it allows them and as it does not: none of them is a fault of ours.

SAMOVAR_FUZZ_REQUESTS=5000 (`make fuzz-http`) is the long form.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.http import Served, served
from tests.oncall import make, many

REQUESTS = int(os.environ.get("SAMOVAR_FUZZ_REQUESTS", "200"))
ANSWER_S = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = make(tmp_path_factory.mktemp("fuzz") / "s")
    service.config.write_text(service.config.read_text() + "http: {requests_per_s: 100000}\n")
    service.process(many(60))
    with served(service) as made:
        made.caught_up()
        yield made


def test_no_request_is_a_fault(site: Served, tmp_path: Path) -> None:
    document = site.client.get("/api/v1/openapi.json").json()
    base = str(site.client.base_url).rstrip("/")
    found: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [each.ok() for each in found]
    share = max(REQUESTS // len(operations), 2)
    seen: Counter[int] = Counter()
    with requests.Session() as session:
        for operation in operations:
            _fuzz(session, operation, base, share, seen)
    assert sum(seen.values()) >= min(REQUESTS, share * len(operations)) * 0.8, seen
    assert seen[200] > 0
    assert seen[422] > 0
    assert site.get("/live") == {"live": True}


def _fuzz(session: requests.Session, operation: Any, base: str, share: int, seen: Counter[int]) -> None:
    """As the document allows it, and as it does not."""
    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    other = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(max_examples=share, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(allowed, other))
    def ask(case: Any) -> None:
        given_ = case.as_transport_kwargs(base_url=base)
        # Only looked at by its head: live alerts never end.
        with session.request(**given_, stream=True, timeout=ANSWER_S) as answer:
            seen[answer.status_code] += 1
            told = answer.text if answer.status_code >= 500 else ""
        assert answer.status_code < 500 or answer.status_code == 503, (case.as_curl_command(), told)

    ask()
