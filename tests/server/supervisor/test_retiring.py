"""A listener that others take over from: nobody who has a connection is cut off."""

import asyncio
import time

from tests.server.raw import Client, TrivialApp, served, until
from toolgate.server.edge.binding import bind


def test_who_has_a_connection_may_ask_once_more_and_is_told_to_close() -> None:
    """(fault: K-H)"""
    with served(TrivialApp(), drain_seconds=30) as server, Client(server.port) as client:
        client.get()
        client.read()
        server._loop.call_soon_threadsafe(server.listener.retire, 20.0)
        until(lambda: server.listener._protocol.draining)
        client.get()
        status, headers = client.read_head()
        assert (status, headers["connection"]) == (200, "close")
        began = time.monotonic()
        server.join()
        assert time.monotonic() - began < 10  # with the last connection it is over


def test_a_request_to_end_is_stronger_than_one_to_retire() -> None:
    with served(TrivialApp(), drain_seconds=30) as server, Client(server.port) as idle:
        idle.get()
        idle.read()
        server._loop.call_soon_threadsafe(server.listener.retire, 20.0)
        until(lambda: server.listener._protocol.draining)
        began = time.monotonic()
        server.drain()
        server.join()
        assert time.monotonic() - began < 10


def test_another_place_is_accepted_for_until_it_has_a_worker_of_its_own() -> None:
    with served(TrivialApp(), drain_seconds=30) as server, bind("127.0.0.1", 0, 30) as other:
        port = other.getsockname()[1]

        def cover(begin: bool) -> None:
            work = server.listener.cover(1, other.dup() if begin else None)
            asyncio.run_coroutine_threadsafe(work, server._loop).result(5)

        cover(True)
        with Client(port) as client:
            client.get()
            assert client.read()[0] == 200
        cover(False)
        cover(True)
        with Client(port) as client:
            client.get()
            assert client.read()[0] == 200
