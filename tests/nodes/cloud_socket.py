"""Calls of a Cloud from other processes, through a socket in the file system. Only its user can open it."""

import os
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

KEY = b"baton"
"""Both ends prove that they know it, as multiprocessing wants it. The file's permissions keep others out."""


class CloudSocket:
    """Answers calls of an object's methods: each connection has one."""

    def __init__(self, path: Path, answering: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # what a process that was killed has left
        self._answering = answering
        before = os.umask(0o177)
        self._listener = Listener(str(path), "AF_UNIX", authkey=KEY)
        os.umask(before)
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):  # closed, or a caller that went away or is a stranger
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        with connection:
            method, arguments = connection.recv()
            try:
                answer = True, getattr(self._answering, method)(*arguments)
            except Exception as error:
                answer = False, error
            connection.send(answer)


class CloudClient:
    """A Cloud in another process. Raises what its methods raise, and OSError if there is no Cloud."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            with Client(self._path, "AF_UNIX", authkey=KEY) as connection:
                connection.send((method, arguments))
                is_answer, value = connection.recv()
            if not is_answer:
                raise value
            return value

        return call
