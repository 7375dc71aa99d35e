"""Errors of sources of weights."""


class DownloadFailed(Exception):
    """A source did not deliver; the text says why."""


class DownloadAbandoned(Exception):
    """The download was cancelled."""
