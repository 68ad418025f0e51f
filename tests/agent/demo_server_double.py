"""A server for the demo's orchestrator: the routes it uses, with answers that change as a run's would.

Started as a program: ``python demo_server_double.py --port P``. The first alert is delivered to the registered
endpoint with a signature of the reference library.
"""

from __future__ import annotations

import argparse
import datetime
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from standardwebhooks.webhooks import Webhook

ALERT = {
    "id": 1,
    "run": "demo",
    "kind": "limit_crossed",
    "severity": "warning",
    "state": "firing",
    "first_step": 30,
    "layer": "blocks.0.mlp.down",
    "message": "above 240",
}
LATER = {**ALERT, "severity": "critical"}
LOSS = {**ALERT, "id": 2, "kind": "loss_spike", "severity": "info", "first_step": 12, "layer": None, "message": "up"}
BROKEN = {**LATER, "id": 3, "kind": "nonfinite", "first_step": 31, "layer": "blocks.3.mlp.down", "message": "NaN"}


class Double(BaseHTTPRequestHandler):
    polls = 0

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        endpoint: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        threading.Thread(target=deliver, args=(endpoint["url"], endpoint["secret"])).start()
        self.answer(201, {"id": 1})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/api/v1/alerts":
            type(self).polls += 1
            self.answer(200, [LOSS, ALERT if self.polls == 1 else LATER])
        elif path == "/api/v1/runs/demo/scalars":
            if self.polls == 0:
                self.answer(404, {"error": {"code": "no_such_run"}})
            else:
                self.answer(200, [{"name": "loss", "steps": [0, 1]}])
        elif path == "/api/v1/runs/demo":
            skipped = [{"step": 31, "layer": None, "rank": 0}, {"step": 45, "layer": None, "rank": 0}]
            self.answer(200, {"steps": 70, "skipped_steps": skipped, "alerts": [BROKEN, LATER, LOSS]})
        else:
            self.answer(404, {"error": {"code": "no_such_run"}})

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Silent: only the first line is read."""


def deliver(url: str, secret: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for identity, alert in (("msg_a", ALERT), ("msg_b", LOSS)):
        body = json.dumps({"type": "alert.firing", "data": alert})
        signature = Webhook(secret).sign(identity, now, body)
        stamp = str(int(now.timestamp()))
        headers = {"webhook-id": identity, "webhook-timestamp": stamp, "webhook-signature": signature}
        urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=60).close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Double)
    print(f"floatscope listening on http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
    server.serve_forever()


if __name__ == "__main__":
    main()
