"""The few HTTP calls that the demo makes to its own server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

__all__ = ["Api", "ApiError"]

_TIMEOUT_S = 10.0


class ApiError(Exception):
    """The server refused a request, or could not be reached (``status`` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """JSON over HTTP to the server at ``address``; raises ``ApiError``."""

    def __init__(self, address: str) -> None:
        self.address = address
        # A proxy in the environment must not see requests to this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Any:  # noqa: ANN401
        return self._call(urllib.request.Request(self.address + path))  # noqa: S310

    def post(self, path: str, body: dict[str, object]) -> Any:  # noqa: ANN401
        headers = {"Content-Type": "application/json"}
        return self._call(urllib.request.Request(self.address + path, json.dumps(body).encode(), headers))  # noqa: S310

    def _call(self, request: urllib.request.Request) -> Any:  # noqa: ANN401
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise ApiError(error.code, f"{request.get_method()} {request.selector}: {error.code} {text}") from error
        except (OSError, ValueError) as error:
            raise ApiError(0, f"{request.get_method()} {request.selector}: {error}") from error
