"""Find the price of a model by any of its names, and compute the cost of a request."""

from collections.abc import Callable, Iterable

from toolgate.config import Config
from toolgate.engine.run_limits import Price
from toolgate.telemetry.request_log import RequestRecord
from toolgate.upstreams.model_names import ModelNameTable

_FREE = Price()


# A function with a name, so that `cost_of` recognizes a configuration without prices and computes nothing.
def _free(name: str) -> Price:
    return _FREE


def prices_by_name(config: Config) -> Callable[[str], Price]:
    """Return a look-up of prices that finds models as the router does, also by a pattern in an alias."""
    if not any(model.price.input or model.price.output for model in config.models):
        return _free
    prices = ModelNameTable(
        [(name, Price(model.price.input, model.price.output)) for name, model in config.by_name().items()]
    )
    return lambda name: prices.find(name) or _FREE


def reservation_prices(config: Config) -> Callable[[str], Price]:
    """Return a look-up of the highest price for a model's name: its fallbacks may answer, too."""
    named = config.by_name()
    highest = []
    for name, model in named.items():
        candidates = [model.price, *[named[fallback].price for fallback in model.fallbacks]]
        highest.append((name, Price(max(one.input for one in candidates), max(one.output for one in candidates))))
    prices = ModelNameTable(highest)
    return lambda name: prices.find(name) or _FREE


def costs_of(records: Iterable[RequestRecord], price_of: Callable[[str], Price]) -> list[float]:
    """Return the cost of each request; none if there are no prices."""
    return [] if price_of is _free else [cost_of(one, price_of) for one in records]


def cost_of(record: RequestRecord, price_of: Callable[[str], Price]) -> float:
    """Return the cost of a request: the usage of each model at its own price, else all of it at the named model's."""
    if record.usage is None or price_of is _free:
        return 0.0
    cost = 0.0
    for model, usage in (record.tally.by_model or {record.model: record.usage}).items():
        cost += price_of(model or record.model).of(usage)
    return cost
