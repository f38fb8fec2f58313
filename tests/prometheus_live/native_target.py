"""A target with a native histogram, in the one format that knows them: protobuf, io.prometheus.client metrics.proto.

Load it by its path, as servers.py.
"""

import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"


class NativeTarget:
    """One histogram of powers of two: `counts[i]` observations in (2**(i-1), 2**i], none of them zero."""

    def __init__(self, name, counts, total, **labels):
        content = _family(name, labels, counts, total)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", TYPE)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _family(name, labels, counts, total):
    deltas = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
    histogram = b"".join(
        [
            _number(1, sum(counts)), _double(2, total), _number(5, 0), _double(6, 2.0**-128), _number(7, 0),
            _bytes(12, _number(1, 0) + _number(2, len(counts))),
            _bytes(13, b"".join(_varint(_zigzag(delta)) for delta in deltas)),
        ]
    )  # fmt: skip
    pairs = [_bytes(1, _bytes(1, key.encode()) + _bytes(2, value.encode())) for key, value in labels.items()]
    family = _bytes(1, name.encode()) + _number(3, 4) + _bytes(4, b"".join(pairs) + _bytes(7, histogram))
    return _varint(len(family)) + family


def _varint(value):
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _zigzag(value):
    return 2 * value if value >= 0 else -2 * value - 1


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _double(field, value):
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value
