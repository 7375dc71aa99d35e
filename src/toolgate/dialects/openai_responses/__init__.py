"""Translate the OpenAI Responses dialect, and the Open Responses specification derived from it."""

from functools import partial

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses import server, upstream
from toolgate.dialects.openai_responses.shared_codec import NAME
from toolgate.dialects.openai_responses.tools import extract_servers
from toolgate.dialects.upstream_errors import without_rejected_settings

DIALECT = Dialect(
    NAME,
    server,
    upstream,
    one_event_per_write=True,
    native_tools=True,
    native_approvals=True,
    extract_servers=extract_servers,
    repair_rejected=partial(without_rejected_settings, NAME),
)
