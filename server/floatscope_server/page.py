"""The page and its files, and the description of the interface."""

from __future__ import annotations

import hashlib
import html
import mimetypes
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from floatscope_server.responses import JSONText, Refusal

__all__ = ["router", "web_folder"]

router = APIRouter(include_in_schema=False)

_PLOTLY = "plotly.min.js"
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def web_folder() -> Path:
    """Where the page's files lie: in the package of a wheel, in ``web`` of a checkout."""
    packaged = Path(__file__).parent / "static"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "web"


@lru_cache(maxsize=1)
def _plotly() -> Path:
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "package_data" / _PLOTLY


def _file(path: str) -> Path:
    if path == _PLOTLY:
        return _plotly()
    root = web_folder().resolve()
    hidden = any(part.startswith(".") for part in path.split("/"))
    try:
        found = None if hidden or not path.isprintable() else (root / path).resolve()
        if found is not None and found.is_relative_to(root) and found.is_file():
            return found
    except OSError:
        pass  # no file system has such a name
    raise Refusal(404, "not_found", "there is no such file", "open / for the dashboard")


@lru_cache(maxsize=256)
def _content(path: Path, changed_ns: int) -> tuple[bytes, str]:
    """Bytes and ETag; ``changed_ns`` is there so that an edited file is read again."""
    data = path.read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def _served(request: Request, path: Path) -> Response:
    data, etag = _content(path, path.stat().st_mtime_ns)
    # Asked for every time and answered 304: an upgrade never meets files of the version before.
    headers = {"etag": etag, "cache-control": "no-cache"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(data, media_type=kind, headers=headers)


@router.get("/")
def index(request: Request) -> Response:
    """The dashboard."""
    return _served(request, _file("index.html"))


@router.get("/static/{path:path}")
def static(path: str, request: Request) -> Response:
    """A file of the dashboard."""
    return _served(request, _file(path))


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The interface as an OpenAPI document."""
    return JSONText(request.app.openapi())


@router.get("/docs")
def docs(request: Request) -> Response:
    """The interface as a page without scripts, so that it works without internet and under the strict policy."""
    document: dict[str, Any] = request.app.openapi()
    rows: list[str] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            rows.append(f"<dt><code>{method.upper()} {html.escape(path)}</code></dt>")
            described = html.escape(operation.get("description") or operation.get("summary") or "")
            parameters = [
                f"<li><code>{html.escape(p['name'])}</code> ({p['in']}) {html.escape(p.get('description', ''))}</li>"
                for p in operation.get("parameters", [])
            ]
            rows.append(f"<dd>{described}<ul>{''.join(parameters)}</ul></dd>")
    title = html.escape(document["info"]["title"])
    return Response(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: HTTP interface</title>'
        f"<h1>{title} {html.escape(document['info']['version'])}</h1><p>{html.escape(document['info']['description'])}"
        f'</p><p><a href="openapi.json">openapi.json</a></p><dl>{"".join(rows)}</dl></html>',
        media_type="text/html",
    )
