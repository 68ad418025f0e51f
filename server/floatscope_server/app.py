"""The application: routes, what guards them, and the life of its services."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import floatscope
from floatscope_server import audit, focus_routes, health, ingest, live_socket, page, retention_routes, session_routes
from floatscope_server.alerts import delivery_routes, endpoint_routes, rule_routes, silence_routes
from floatscope_server.alerts import routes as alert_routes
from floatscope_server.auth import unclassified
from floatscope_server.database import StoreError, reason, trouble
from floatscope_server.query import routes as query_routes
from floatscope_server.query import scaler_routes, window_routes
from floatscope_server.query.dumps import DumpTooLargeError, UnknownDumpError
from floatscope_server.query.histogram import UnknownLayerError
from floatscope_server.query.line import BadQueryError, UnknownRunError
from floatscope_server.report import routes as report_routes
from floatscope_server.responses import JSONText, busy, error_body
from floatscope_server.security import SecurityMiddleware, authorize
from floatscope_server.services import Services
from floatscope_server.settings import Settings

__all__ = ["ROUTERS", "create_app"]

ROUTERS = (
    page.router,  # first: a page asks for a hundred files, and routes are tried in turn
    query_routes.router,
    window_routes.router,
    scaler_routes.router,
    report_routes.router,
    alert_routes.router,
    endpoint_routes.router,
    delivery_routes.router,
    rule_routes.router,
    silence_routes.router,
    audit.router,
    focus_routes.router,
    retention_routes.router,
    session_routes.router,
    ingest.router,
    live_socket.router,
    health.router,
)


def create_app(settings: Settings, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """The server as an ASGI application; its lifespan opens and closes the store.

    ``clock`` gives wall-clock seconds since 1970. ``RuntimeError`` if a route has no scope in ``auth.ROUTES``.
    """
    if missing := unclassified(ROUTERS):
        raise RuntimeError(f"routes without a scope in auth.ROUTES: {missing}")
    services = Services(settings, clock=clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await services.start()
        try:
            yield
        finally:
            await services.stop()

    app = FastAPI(
        title="Floatscope",
        description="Numeric-health telemetry of training runs. In JSON a NaN or infinity is a string, and what was "
        "not observed is null.",
        version=floatscope.__version__,
        lifespan=lifespan,
        dependencies=[Depends(authorize)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.services = services
    app.add_middleware(SecurityMiddleware, settings=settings)
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(UnknownRunError, _unknown_run)
    app.add_exception_handler(UnknownLayerError, _unknown_layer)
    app.add_exception_handler(UnknownDumpError, _unknown_dump)
    app.add_exception_handler(DumpTooLargeError, _dump_too_large)
    app.add_exception_handler(BadQueryError, _bad_query)
    app.add_exception_handler(OverflowError, _out_of_range)
    app.add_exception_handler(Exception, _internal)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(PoolTimeoutError, _busy)
    app.add_exception_handler(StoreError, _cannot_write)
    app.add_exception_handler(DataError, _out_of_range)
    app.add_exception_handler(DBAPIError, _database)
    return app


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body: object = error.detail
    if not isinstance(body, dict):
        body = error_body("http", str(error.detail), "see /docs for what there is")
    return JSONText(body, status_code=error.status_code, headers=error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in error.errors())
    return JSONText(error_body("invalid", problems[:1000], "see /docs for what is allowed"), status_code=422)


async def _busy(request: Request, _: Exception) -> Response:
    return await _http_error(request, busy())


async def _out_of_range(_: Request, __: Exception) -> Response:
    """A number, or a text with a NUL character, that the database cannot hold."""
    return JSONText(error_body("invalid", "a value is out of range", "see /docs for what is allowed"), status_code=422)


async def _internal(_: Request, __: Exception) -> Response:
    body = error_body(
        "internal", "the server failed on this", "see its log; this is a mistake in floatscope: report it"
    )
    return JSONText(body, status_code=500)


async def _gone(_: Request, __: Exception) -> Response:
    """Who left before the end of its request reads no answer; 499 is what proxies log for it."""
    return Response(status_code=499)


async def _unknown_run(_: Request, error: Exception) -> Response:
    body = error_body("unknown_run", f"there is no run {str(error)[:60]!r}", "GET /api/v1/runs lists them")
    return JSONText(body, status_code=404)


async def _unknown_layer(_: Request, error: Exception) -> Response:
    body = error_body("unknown_layer", f"the run has no layer {str(error)[:60]!r}", "GET the run to list its layers")
    return JSONText(body, status_code=404)


async def _unknown_dump(_: Request, error: Exception) -> Response:
    body = error_body(
        "unknown_dump",
        f"the run has no dump {str(error)[:60]!r}, or not any more",
        "GET the run's dumps to list them",
    )
    return JSONText(body, status_code=404)


async def _dump_too_large(_: Request, __: Exception) -> Response:
    body = error_body(
        "dump_too_large",
        "what the dump holds of this does not fit one answer",
        "ask for one `rank`, for one `kind`, or for both",
    )
    return JSONText(body, status_code=413)


async def _bad_query(_: Request, error: Exception) -> Response:
    return JSONText(error_body("invalid", str(error), "see /docs for what is allowed"), status_code=422)


async def _database(request: Request, error: Exception) -> Response:
    """The same question can be answered once the database is well again; another one is the server's mistake."""
    assert isinstance(error, DBAPIError)
    if trouble(error) is None:
        raise error
    return await _cannot_write(request, error)


async def _cannot_write(_: Request, error: Exception) -> Response:
    return JSONText(error_body("store", reason(error), "see to the server's disk and its log"), status_code=503)
