"""A stand-in for a model server, as in the recording: answers 503 until ready, and takes a while to end at SIGTERM."""

import http.server
import signal
import sys
import threading
import time

host, port, startup, drain = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
ready_at = time.monotonic() + startup


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() >= ready_at else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


server = http.server.ThreadingHTTPServer((host, port), Handler)


def end(number: int, frame: object) -> None:
    print("SIGTERM", flush=True)
    threading.Timer(drain, server.shutdown).start()


signal.signal(signal.SIGTERM, end)
print("start", flush=True)
server.serve_forever()
