"""A listener that retires while others serve on: no open connection is cut off."""

from tests.http.raw_client import Client, TrivialApp, served, until
from toolgate.http.sockets import bind


def test_an_idle_client_may_send_one_more_request_and_gets_connection_close() -> None:
    """(fault: K-H)"""
    with served(TrivialApp(), drain_seconds=3600) as server, Client(server.port) as client:
        client.get()
        client.read()
        server.call(lambda: server.listener.retire(3600.0))
        until(lambda: server.listener.draining)
        client.get()
        status, headers = client.read_head()
        assert (status, headers["connection"]) == (200, "close")
        server.join()  # with the last connection it is over


def test_a_request_to_end_is_stronger_than_one_to_retire() -> None:
    with served(TrivialApp(), drain_seconds=3600) as server, Client(server.port) as idle:
        idle.get()
        idle.read()
        server.call(lambda: server.listener.retire(3600.0))
        until(lambda: server.listener.draining)
        server.drain()
        server.join()


def test_another_place_is_accepted_for_until_it_has_a_worker_of_its_own() -> None:
    with served(TrivialApp(), drain_seconds=3600) as server, bind("127.0.0.1", 0, 30) as other:
        port = other.getsockname()[1]

        def cover(begin: bool) -> None:
            work = server.listener.cover(1, other.dup() if begin else None)
            server.run(work)

        cover(True)
        with Client(port) as client:
            client.get()
            assert client.read()[0] == 200
        cover(False)
        cover(True)
        with Client(port) as client:
            client.get()
            assert client.read()[0] == 200
