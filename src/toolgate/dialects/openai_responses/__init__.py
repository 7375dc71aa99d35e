"""OpenAI Responses, and the Open Responses specification that grew out of it."""

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses import server, upstream
from toolgate.dialects.openai_responses.tools import take_servers

DIALECT = Dialect(
    "openai_responses", server, upstream, one_event_a_write=True, native=True, asking=True, take_servers=take_servers
)
