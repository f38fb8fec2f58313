"""A Prometheus that says what was recorded: for histograms that the one in the live tests cannot keep."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest


@pytest.fixture
def start_recorded():
    """Starts a server with names of metrics and answers by a part of the query; returns its address.

    A query that nothing is recorded for has an empty result. What was asked is in `start_recorded.asked`.
    """
    servers = []

    def start(names, answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = urlsplit(self.path)
                expr = parse_qs(asked.query).get("query", [""])[0]
                start.asked.append(expr)
                found = [rows for part, rows in answers.items() if part in expr]
                kind = "matrix" if asked.path.endswith("query_range") else "vector"
                data = {"resultType": kind, "result": found[0] if found else []}
                content = json.dumps({"status": "success", "data": names if "label" in asked.path else data}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    start.asked = []
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
