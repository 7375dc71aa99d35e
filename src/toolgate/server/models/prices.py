"""The price of a model by any name that a client may use for it."""

from collections.abc import Callable

from toolgate.config import Config
from toolgate.engine.limits import Price
from toolgate.upstreams.model_names import ModelNames

_FREE = Price()


def price_table(config: Config) -> Callable[[str], Price]:
    """Look prices up as the router looks models up, so that a name caught by an alias pattern is not free."""
    prices = ModelNames(
        [(name, Price(model.price.input, model.price.output)) for name, model in config.by_name().items()]
    )
    return lambda name: prices.find(name) or _FREE
