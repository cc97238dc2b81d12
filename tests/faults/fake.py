"""A server of no model that is up in 30 ms: `fake.py PORT MODE`, standard library without site, for simulated days.

Modes: `plain`; `deaf` ignores TERM; `daemon` leaves a deaf daemon in a session of its own; `silent` never answers.
"""

import os
import signal
import socket
import sys


def daemon() -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    os.waitpid(child, 0)


def answer(path: str) -> bytes:
    body = b'{"data":[{"id":"fake"}]}' if path == "/v1/models" else b'{"usage":{"completion_tokens":1}}'
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def main() -> None:
    port, mode = int(sys.argv[1]), sys.argv[2]
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if mode == "daemon":
        daemon()
    if mode == "silent":
        signal.pause()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(16)
    while True:
        client, _ = listener.accept()
        with client:
            asked = client.recv(65536).decode()
            if asked:
                client.sendall(answer(asked.split()[1]))


if __name__ == "__main__":
    main()
