"""A way to a server that can be cut as networks are: nothing is refused, nothing arrives."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Event, Lock, Thread


class Proxy:
    """Passes on what comes to its port, in both directions, while it is not cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = Event()
        self._passes.set()
        self._lock = Lock()
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Hold back everything from now on; what comes stays with the kernel."""
        self._passes.clear()

    def heal(self) -> None:
        """Drop the connections that were cut, as a firewall has forgotten them by then, and let new ones pass."""
        with self._lock:
            stale, self._sockets = self._sockets, []
        for each in stale:
            _close(each)
        self._passes.set()

    def close(self) -> None:
        """End all connections, and listen no more."""
        self._is_closed = True
        self._listener.close()
        self.heal()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with self._lock:
            self._sockets.append(near)
        self._passes.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the server is down: the connection ends as one to it would
            _close(near)
            return
        with self._lock:
            self._sockets.append(far)
        for one, other in ((near, far), (far, near)):
            Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._passes.wait()
                sink.sendall(data)
        _close(source)
        _close(sink)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
