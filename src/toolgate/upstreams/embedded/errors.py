"""How a source of weights may fail."""


class Undelivered(Exception):
    """It did not deliver; the text says why, in words for a person."""


class Abandoned(Exception):
    """Nobody wants the weights any more."""
