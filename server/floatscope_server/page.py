"""The page and its files, and the description of the interface."""

from __future__ import annotations

import asyncio
import html
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from floatscope_server.pagefiles import ENTRY, LARGE, PageFile, PageFiles
from floatscope_server.responses import JSONText, Refusal

__all__ = ["router", "web_folder"]

router = APIRouter(include_in_schema=False)

_PLOTLY = "plotly.min.js"

_FOR_EVER = "public, max-age=31536000, immutable"
_ASK = "no-cache"
"""Asked for every time and answered 304: an upgrade never meets files of the version before."""


def web_folder() -> Path:
    """Where the page's files lie: in the package of a wheel, in ``web`` of a checkout."""
    packaged = Path(__file__).parent / "static"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "web"


@cache
def _files() -> PageFiles:
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return PageFiles(web_folder(), {_PLOTLY: Path(spec.origin).parent / "package_data" / _PLOTLY})


async def _served(request: Request, file: PageFile, caching: str) -> Response:
    zipped = None
    if "gzip" in request.headers.get("accept-encoding", ""):
        large = len(file.data) >= LARGE
        zipped = await asyncio.to_thread(lambda: file.gzipped) if large else file.gzipped
    etag = f'"{file.etag}{"" if zipped is None else "-gz"}"'
    headers = {"etag": etag, "cache-control": caching, "vary": "accept-encoding"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if zipped is None:
        return Response(file.data, media_type=file.media_type, headers=headers)
    return Response(zipped, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})


@router.get("/")
async def index(request: Request) -> Response:
    """The dashboard."""
    # The first of all requests of a page: what has been edited since is read anew here.
    now = await asyncio.to_thread(_files().take)
    return await _served(request, now.files[ENTRY], _ASK)


@router.get("/static/{path:path}")
async def static(path: str, request: Request) -> Response:
    """A file of the dashboard; ``@VERSION/`` before its path: it may be kept for ever."""
    held = _files().held
    file, kept = (None, False) if held is None else held.named(path)
    if not kept:
        file, kept = (await asyncio.to_thread(_files().take)).named(path)
    if file is None:
        raise Refusal(404, "not_found", "there is no such file", "open / for the dashboard")
    return await _served(request, file, _FOR_EVER if kept else _ASK)


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
