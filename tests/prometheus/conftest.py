"""A small HTTP server that answers what a test tells it to, and remembers what it was asked."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

SCALAR = {"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}


class Api:
    """Answers every question with the next of `answers`, or with its last: (status, headers, content)."""

    def __init__(self, certificate=None, client_ca=None):
        self.asked, self.answers = [], []
        self.say(SCALAR)
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                api.reply(self, urlsplit(self.path).query)

            def do_POST(self):
                api.reply(self, self.rfile.read(int(self.headers["Content-Length"])).decode())

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.port = self._server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def say(self, answer, status=200, headers=()):
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.answers = [(status, dict(headers), content)]

    def then(self, answer, status=200):
        before = self.answers
        self.say(answer, status)
        self.answers = before + self.answers

    def reply(self, handler, query):
        self.asked.append(
            {
                "method": handler.command,
                "path": urlsplit(handler.path).path,
                "params": parse_qsl(query),
                "headers": {name.lower(): value for name, value in handler.headers.items()},
            }
        )
        status, headers, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        handler.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def start_api():
    running = []

    def start(**options):
        running.append(Api(**options))
        return running[-1]

    yield start
    for api in running:
        api.stop()


@pytest.fixture
def api(start_api):
    return start_api()
