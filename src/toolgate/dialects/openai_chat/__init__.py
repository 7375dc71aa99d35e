"""Translate the OpenAI Chat Completions dialect."""

from functools import partial

from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_chat import server, upstream
from toolgate.dialects.openai_chat.plain_text_fast_path import decode_plain_answer
from toolgate.dialects.openai_chat.shared_codec import NAME
from toolgate.dialects.upstream_errors import without_rejected_settings

DIALECT = Dialect(
    NAME,
    server,
    upstream,
    repair_rejected=partial(without_rejected_settings, NAME),
    decode_plain_answer=decode_plain_answer,
)
