"""What the conformance suite's containers run: a small HTTP server that notes when it was probed and signalled.

`python3 -S -c SOURCE HOST PORT OPTIONS`. It must run anywhere with a bare Python, so it uses nothing else.

OPTIONS (JSON): `late` seconds until it listens; `ok` maps a path to intervals [from, to) of seconds since the start in
which it answers 200, and 503 otherwise; other paths answer 200; `drain` seconds from SIGTERM to its end, null for one
that ignores SIGTERM; `code` its exit code then. Paths with a meaning: /wait/SECONDS answers that much later, /seen
tells what was noted as JSON: [[unix time, what], ...]. The same goes to standard output, a line each.
"""

import json
import os
import signal
import socket
import sys
import threading
import time

begun = time.time()
host, port, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
seen = []


def note(what):
    seen.append([time.time(), what])
    print(json.dumps(seen[-1]), flush=True)


def is_ok(path):
    windows = options.get("ok", {}).get(path)
    age = time.time() - begun
    return windows is None or any(start <= age < end for start, end in windows)


def answer(connection):
    with connection:
        head = connection.recv(65536).decode()
        if not head:
            return
        path = head.split(" ", 2)[1]
        status, body = ("200 OK", "") if is_ok(path) else ("503 Unavailable", "")
        if path == "/seen":
            body = json.dumps(seen)
        else:
            note(path)
        if path.startswith("/wait/"):
            time.sleep(float(path.removeprefix("/wait/")))
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def end(number, frame):
    note("SIGTERM")
    if options.get("drain", 0) is not None:
        timer = threading.Timer(options.get("drain", 0), os._exit, [options.get("code", 0)])
        timer.daemon = True
        timer.start()


signal.signal(signal.SIGTERM, end)
note("start")
time.sleep(options.get("late", 0))
listener = socket.create_server((host, port))
while True:
    threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()
