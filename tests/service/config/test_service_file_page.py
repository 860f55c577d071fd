"""docs/service-file.md is complete: every key is in it, and the defaults that it writes out are the defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from samovar.service.config.loading import ServiceFile, load_service
from tests.support.doc_snippets import blocks_of
from tests.support.project import ROOT

PAGE = ROOT / "docs" / "service-file.md"
LEAST = "service: fraud\nstreams:\n  purchase: {key: card}\n"


def loaded(folder: Path, text: str) -> dict[str, Any]:
    (folder / "rules").mkdir(exist_ok=True)
    (folder / "service.yml").write_text(text, "utf-8")
    return load_service(folder / "service.yml", {}).model_dump()


def complete() -> str:
    return next(block.text for block in blocks_of(PAGE, ROOT) if block.name == "service.yml")


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        for inner in models_in(field.annotation):
            yield from keys_of(inner)


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from models_in(inner)


def test_the_complete_file_is_the_least_one_with_its_defaults(tmp_path: Path) -> None:
    assert LEAST in PAGE.read_text("utf-8")
    assert loaded(tmp_path, complete()) == loaded(tmp_path, LEAST)


def test_the_complete_file_has_every_key() -> None:
    written = set(re.findall(r"([a-z_]+):", complete()))
    # The settings of Kafka are in an example of their own.
    assert set(keys_of(ServiceFile)) - written == {"kafka", "bootstrap", "client"}


def test_every_key_is_explained() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    spans = [span for span in re.findall(r"`[^`\n]+`", prose) if not span.startswith("`--")]  # a flag is not a key
    named = set(re.findall(r"[a-z_]+", " ".join(spans)))
    assert set(keys_of(ServiceFile)) - named == {"client"}  # which gathers Kafka's own settings, by their own names
