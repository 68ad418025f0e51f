"""Health check of a server's container: ``python -m floatscope_server.probe`` ends 0 when /healthz answers 200, else
1 with the reason."""

from __future__ import annotations

import os
import sys
import urllib.request

from floatscope_server.settings import DEFAULT_PORT

__all__ = ["main"]


def main() -> None:
    """Ask the server of this machine, past any proxy."""
    address = f"http://127.0.0.1:{os.environ.get('FLOATSCOPE_PORT', DEFAULT_PORT)}/healthz"
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=3).close()
    except OSError as error:
        sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    main()
