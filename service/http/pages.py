"""The pages: files of service/http/web/static, served as they are. What is not a file is a page's own route:
index.html.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).resolve().parent / "web" / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
NO_PAGES = "The pages are not built here. The API is at /api/v1, described at /api/v1/openapi.json.\n"


def register(app: FastAPI, folder: Path = FOLDER) -> None:
    """Serve the files that there are now: what is asked for is looked up in their list, never in the file system."""
    files = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if _is_served(path)}

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def page(request: Request, path: str) -> Response:
        del path
        asked = request.url.path
        if asked.startswith("/api/") or (Path(asked).suffix and asked not in files):
            raise HTTPException(404, "there is nothing here")
        found = files.get(asked, files.get("/index.html"))
        if found is None:
            return Response(NO_PAGES, media_type="text/plain; charset=utf-8")
        return FileResponse(found, media_type=KINDS[found.suffix], headers={"Cache-Control": "no-cache"})


def _is_served(path: Path) -> bool:
    return path.is_file() and path.suffix in KINDS
