"""Where an archive is: a folder of this machine, or what fsspec reaches by a URL (`s3://bucket/prefix`, ...).

A file appears whole or not at all: here by a rename, in an object store by one put. Nothing is ever changed in place.
Names are relative, with `/` between their parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from samovar.common.errors import Refused
from samovar.common.folders import PART, make_private, sync


class ArchiveFolder(Protocol):
    """What an archive needs of a file system."""

    @property
    def url(self) -> str: ...
    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder, sorted; none where it does not exist."""

    def source(self, name: str) -> Any:
        """A file as pyarrow reads it. Raises FileNotFoundError."""

    def size(self, name: str) -> int: ...
    def publish(self, file: Path, name: str) -> None:
        """Put a finished file of this machine there, whole. It is gone from its place afterwards."""

    def delete(self, name: str) -> None: ...
    def scratch(self) -> Path | None:
        """Where files are made before they are published; None: anywhere."""


class LocalFolder:
    """A folder of this machine, which this user alone can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    def names(self, folder: str) -> list[str]:
        with _reached(self.url, "listed"), suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path / folder) if not name.endswith(PART))  # noqa: PTH208 - many
        return []

    def source(self, name: str) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - large

        with _reached(self.url, "read"):
            return pa.memory_map(str(self.path / name))

    def size(self, name: str) -> int:
        with _reached(self.url, "read"):
            return (self.path / name).stat().st_size

    def publish(self, file: Path, name: str) -> None:
        target = self.path / name
        with _reached(self.url, "written"):
            make_private(target.parent)
            sync(file)
            file.replace(target)
            sync(target.parent)

    def delete(self, name: str) -> None:
        with _reached(self.url, "written"):
            (self.path / name).unlink(missing_ok=True)

    def scratch(self) -> Path | None:
        with _reached(self.url, "written"):
            make_private(self.path)
        return self.path  # the same file system, so that a rename is enough


class UrlFolder:
    """A place that fsspec reaches. `options` are those of its file system, such as `endpoint_url` of S3."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        with _reached(url, "opened"):
            import fsspec  # noqa: PLC0415 - only where it is needed

            self._fs, self._root = fsspec.url_to_fs(self._url, use_listings_cache=False, **options)

    @property
    def url(self) -> str:
        return self._url

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        with _reached(self.url, "listed"), suppress(FileNotFoundError):
            found = {each.rstrip("/").rpartition("/")[2] for each in self._fs.ls(path, detail=False) if each != path}
            return sorted(found)
        return []

    def source(self, name: str) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - large

        with _reached(self.url, "read"):
            return pa.BufferReader(self._fs.cat_file(self._path(name)))

    def size(self, name: str) -> int:
        with _reached(self.url, "read"):
            return int(self._fs.size(self._path(name)))

    def publish(self, file: Path, name: str) -> None:
        with _reached(self.url, "written"):
            self._fs.pipe_file(self._path(name), file.read_bytes())
            file.unlink()

    def delete(self, name: str) -> None:
        with _reached(self.url, "written"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def scratch(self) -> Path | None:
        return None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


@contextmanager
def _reached(url: str, what: str) -> Iterator[None]:
    """What goes wrong in a client is of many types, and none of ours."""
    try:
        yield
    except Refused:
        raise
    except ImportError as error:
        scheme = url.split("://", 1)[0]
        package = "`pip install 'samovar[s3]'`" if scheme in ("s3", "s3a") else f"fsspec's package for `{scheme}`"
        what = f"the archive {url} cannot be {what}: {error}"
        raise Refused("archive-unreachable", what, f"It needs {package}.") from error
    except Exception as error:
        if isinstance(error, FileNotFoundError) and what != "written":
            raise
        raise Refused(
            "archive-unreachable",
            f"the archive {url} cannot be {what}: {error}",
            "Look at the address, at who may read and write there, and at `options` of `archive` in the service file,"
            " then run it again.",
        ) from error


def open_folder(url: str, options: Mapping[str, Any]) -> ArchiveFolder:
    """The folder of a path or a URL."""
    if "://" in url and not url.startswith("file://"):
        return UrlFolder(url, options)
    return LocalFolder(Path(url.removeprefix("file://")))
