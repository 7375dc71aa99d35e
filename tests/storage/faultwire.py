"""A wire to a PostgreSQL that can be cut: a relay on a unix socket that loses what it is told to lose."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PORT = ".s.PGSQL.5432"


class FaultWire:
    """Carries bytes both ways until it is told what to do with them."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self._server = server
        self._losing: bytes | None = None
        self._refusing = False
        self.lost = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _PORT))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_answer_to(self, words: bytes, *, and_stay_away: bool = False) -> None:
        """Let the next statement with these words reach the server, and nothing come back."""
        self._losing = words
        self._stay_away = and_stay_away
        self.lost.clear()

    def come_back(self) -> None:
        """Carry new connections again."""
        self._refusing = False

    def close(self) -> None:
        """Cut everything."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut every connection."""
        while self._open:
            one = self._open.pop()
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server / _PORT))
            self._open += [client, server]
            response = threading.Event()
            threading.Thread(target=self._carry, args=(client, server, response, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, response, False), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, cut: threading.Event, asking: bool) -> None:
        try:
            while piece := source.recv(65536):
                if asking and self._losing is not None and self._losing in piece:
                    self._losing = None
                    cut.set()
                    self._refusing = self._stay_away
                if not asking and cut.is_set():  # the server has answered: it is done there
                    break
                target.sendall(piece)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if cut.is_set():
            self.lost.set()


@contextmanager
def fault_wire(folder: Path, server: Path) -> Iterator[FaultWire]:
    """A relay in this folder to the server of that one."""
    folder.mkdir()
    wire = FaultWire(folder, server)
    try:
        yield wire
    finally:
        wire.close()
