"""Environment variables as pydantic-settings nests them. A module of its own, since it takes long to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource


def nested(environment: Mapping[str, str], names: Sequence[str], prefix: str, between: str) -> dict[str, Any]:
    """`{"streams": {"purchase": {"partitions": "8"}}}` from SAMOVAR_STREAMS__PURCHASE__PARTITIONS=8. All are text."""
    fields: dict[str, Any] = {name: (dict[str, Any], {}) for name in names}
    model = create_model("Variables", __base__=BaseSettings, **fields)
    return _Variables(model, environment, prefix, between)()


class _Variables(EnvSettingsSource):
    """Of the environment that is given, and with values left as they stand: the service file's model reads them."""

    def __init__(self, model: type[BaseSettings], environment: Mapping[str, str], prefix: str, between: str) -> None:
        self._environment = environment
        super().__init__(model, case_sensitive=False, env_prefix=prefix, env_nested_delimiter=between)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environment.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002 - as in the base
        return value
