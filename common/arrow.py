"""pyarrow and DuckDB are extras: as large as everything else that Samovar installs, and not needed to run a service."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from samovar.common.errors import Refused

# For the first rows of a data set: threads that read ahead may outlive the interpreter, which ends the process.
NO_READ_AHEAD: dict[str, Any] = {"use_threads": False, "batch_readahead": 0, "fragment_readahead": 0}


def require_arrow(what: str) -> None:
    """To be asked before pyarrow is imported, which is done late because it takes long."""
    if find_spec("pyarrow") is None:
        raise Refused(
            "arrow-missing", f"{what} need pyarrow, which is not installed", "`pip install 'samovar[arrow]'`."
        )


def require_sql() -> None:
    """To be asked before DuckDB is imported."""
    missing = [name for name in ("duckdb", "prompt_toolkit", "pyarrow") if find_spec(name) is None]
    if missing:
        what = f"SQL needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed"
        raise Refused("sql-missing", what, "`pip install 'samovar[sql]'`.")
