"""OpenAI Chat Completions."""

from functools import partial

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_chat import server, upstream
from toolgate.dialects.openai_chat.words import NAME
from toolgate.dialects.refusals import without_refused_wishes

DIALECT = Dialect(NAME, server, upstream, mend_refused=partial(without_refused_wishes, NAME))
