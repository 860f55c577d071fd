"""Answers are what the OpenAPI document says of them: no field more, none less, and of these types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from samovar.service import http_answers as answers
from tests.http import Served, served, wait_for
from tests.oncall import RULES, catch_up, make, many, purchase


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Served, with a container beside it."""
    service = make(tmp_path_factory.mktemp("answers") / "s")
    service.produce(many(60))
    with service.container() as container, served(service) as made:
        catch_up(container)
        made.caught_up()
        yield made


def is_as(model: type[BaseModel], answer: Any) -> None:
    found = model.model_validate(answer, strict=False)
    assert found.model_dump(by_alias=True, exclude_unset=True, mode="json") == answer
    assert not set(answer) - {field.alias or name for name, field in model.model_fields.items()}


def test_answers_are_as_they_are_described(site: Served) -> None:
    wait_for(lambda: site.get("/alerts")["alerts"])
    page = site.get("/alerts?limit=2")
    alert = f"/alerts/{page['alerts'][0]['id']}"
    is_as(answers.AlertsPage, page)
    is_as(answers.LabelMade, site.put(f"{alert}/label", {"label": "confirmed", "note": "so it was"}))
    is_as(answers.AlertWhole, site.get(alert))
    is_as(answers.Precisions, site.get("/alerts/precision"))
    is_as(answers.AlertCounts, site.get("/alerts/counts?buckets=3"))
    key = site.get("/keys")["keys"][0]["key_text"]
    held = site.get(f"/keys/{key}")
    assert held["held"]
    is_as(answers.KeyShown, held)
    is_as(answers.KeyEvents, site.get(f"/keys/{key}/events"))
    is_as(answers.Live, site.get("/live"))
    is_as(answers.Ready, site.ask("GET", "/ready").json())
    is_as(answers.CaughtUp, site.ask("GET", "/caught-up").json())
    is_as(answers.Status, site.get("/status"))
    planned = site.post("/rules/plan", {"text": RULES["testing"].replace("runs=2..", "runs=3..")})
    is_as(answers.Planned, planned)
    is_as(answers.RuleChanged, site.post("/rules/testing/disable", {"note": "no"}))
    is_as(answers.Written, site.post("/streams/purchase/events", purchase("posted", 90, 3)))


def test_the_document_has_them(site: Served) -> None:
    document = site.client.get("/api/v1/openapi.json").json()
    found = document["paths"]["/api/v1/alerts/{alert}"]["get"]["responses"]["200"]["content"]["application/json"]
    assert found["schema"]["$ref"].endswith("/AlertWhole")
    typed = [model for model in vars(answers).values() if isinstance(model, type) and issubclass(model, BaseModel)]
    known = document["components"]["schemas"]
    assert {model.__name__ for model in typed if model is not BaseModel} <= known.keys()
