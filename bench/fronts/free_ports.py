"""Ports for processes that are started now and listen later."""

import errno
import random
import socket

LISTENING = range(20_000, 32_000)
"""Below those that the system gives to connections: one of these is still free when its process gets to it."""


def free_port(host: str = "127.0.0.1") -> int:
    while True:
        port = random.choice(LISTENING)
        with socket.socket() as listener:
            try:
                listener.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
