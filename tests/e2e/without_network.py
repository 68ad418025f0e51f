"""Run inside a network namespace that has only a loopback: starts an installed server and opens its page.

Usage: without_network.py FLOATSCOPE CHROMIUM DATA_FOLDER
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

from tests.chromium import browser, listen


def main(floatscope: str, chromium: str, data: str) -> None:
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError:
        pass
    else:
        raise SystemExit("this was to run without a network")
    command = [floatscope, "server", "--port", "0", "--data", data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            address = re.fullmatch(r"floatscope listening on (http://127\.0\.0\.1:\d+)\n", line)
            assert address is not None, line
            url = address[1]
            with browser(chromium) as running:
                page = running.new_page()
                complaints = listen(page, url)
                page.goto(url)
                page.get_by_role("heading", level=1).first.wait_for(timeout=20_000)
                page.wait_for_load_state("networkidle")
                assert complaints.texts == []
            print(f"loaded {url}")  # noqa: T201 - this is a program
        finally:
            server.terminate()
        assert server.wait(20) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
