"""OpenAI Responses, and the Open Responses specification that grew out of it."""

from functools import partial

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses import server, upstream
from toolgate.dialects.openai_responses.tools import take_servers
from toolgate.dialects.openai_responses.words import NAME
from toolgate.dialects.refusals import without_refused_wishes

DIALECT = Dialect(
    NAME,
    server,
    upstream,
    one_event_a_write=True,
    native=True,
    asking=True,
    take_servers=take_servers,
    mend_refused=partial(without_refused_wishes, NAME),
)
