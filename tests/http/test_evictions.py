"""Which connections make room for new ones, and what it costs to find them."""

from toolgate.http.evictions import ConnectionEvictions


class Connection:
    """A connection from an address that has been overdue since some time; it counts how often it is looked at."""

    def __init__(self, address: str, since: float | None) -> None:
        self.client: tuple[str, int] | None = (address, 1)
        self.since = since
        self.looks = 0

    def overdue_seconds(self, now: float) -> float:
        self.looks += 1
        return 0.0 if self.since is None else max(0.0, now - self.since)


def test_the_address_with_the_most_connections_loses_the_most_overdue_first() -> None:
    many = [Connection("10.0.0.1", since) for since in (5.0, 3.0, None, 4.0)]
    few = [Connection("10.0.0.2", 1.0)]
    evictions, everyone = ConnectionEvictions(), [*few, *many]
    chosen = [evictions.choose(everyone, 5, 10.0) for _ in range(4)]
    assert chosen == [many[1], many[3], many[0], few[0]]


def test_a_connection_that_has_sent_a_request_meanwhile_is_not_evicted() -> None:
    first, second = Connection("a", 1.0), Connection("a", 2.0)
    third = Connection("a", 3.0)
    evictions = ConnectionEvictions()
    assert evictions.choose([first, second, third], 3, 10.0) is first
    second.since = None
    assert evictions.choose([second, third], 2, 10.0) is third


def test_a_flood_of_new_connections_looks_at_the_busy_ones_only_now_and_then() -> None:
    busy = [Connection("a", None) for _ in range(1_000)]
    evictions = ConnectionEvictions()
    assert [evictions.choose(busy, 1_000, 10.0 + number / 10_000) for number in range(1_000)] == [None] * 1_000
    assert max(one.looks for one in busy) == 1
    busy[0].since = 1.0
    assert evictions.choose(busy, 1_000, 10.5) is busy[0]


def test_thousands_of_overdue_connections_are_all_found_at_once() -> None:
    overdue = {Connection("a", float(number)) for number in range(1_000)}
    evictions = ConnectionEvictions()
    while overdue:
        chosen = evictions.choose(overdue, len(overdue), 2_000.0)
        assert isinstance(chosen, Connection)
        overdue.remove(chosen)
