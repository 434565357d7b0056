"""The process of an engine core, run as a script with the standard library alone: it says when a step is over.

    core_process.py DESCRIPTOR NAME

Each 8 bytes that come on the socket are the length of a step in seconds (a native double); when it has passed, one byte
goes back. It ends when the socket does.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import sys
import time
from pathlib import Path


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    with contextlib.suppress(OSError):  # Linux alone lets a process name itself so; `ps` shows the name in any case
        Path("/proc/self/comm").write_text(sys.argv[2])
    steps = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(ConnectionError):
        while asked := steps.recv(8, socket.MSG_WAITALL):
            time.sleep(struct.unpack("d", asked)[0])
            steps.send(b".")


if __name__ == "__main__":
    main()
