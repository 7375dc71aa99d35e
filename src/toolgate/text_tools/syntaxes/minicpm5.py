"""Read and write the calls of MiniCPM5: `<function name="f"><param name="k">v</param></function>`, with CDATA."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import Tools, argument_values, bare_text, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import STRING, types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

_NEEDS_CDATA = re.compile(r"[<&\n\r]")


def read_key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
    if not (yield from state.buffer.accept("<param ")):
        return None
    attributes = yield from tagged.read_tag_end(state)
    return (attributes["name"], None) if attributes and "name" in attributes else None


_END = "</function>"
_TAGS = tagged.TagFormat(read_key, "</param>", "<param ", (_END,), ("<param ", _END), escapes=True)


def read(state: ParserState, _: str) -> Parse[None]:
    attributes = yield from tagged.read_tag_end(state)
    name = attributes.get("name") if attributes else None
    parsed = state.begin_call(name) if name else None
    if name and parsed:
        yield from tagged.read_parameters(state, parsed, name, _TAGS)


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    rendered: list[str] = []
    for call in calls:
        types = types_of(tools.get(call.name))
        parameters: list[str] = []
        for key, value in argument_values(call).items():
            text = bare_text(value, key, types, python=True)
            is_container = text[:1] in ("[", "{") and STRING not in types.of(key)
            if _NEEDS_CDATA.search(text) and not is_container:
                # `]]>` would end the section, so it is split over two of them.
                sections = f"<![CDATA[{text.replace(']]>', ']]]]><![CDATA[>')}]]>"
                text = sections if isinstance(value, str) else free_of(text, "<", "&")
            parameters.append(f'<param name="{free_of(key, *tagged.MARKUP)}">{text}</param>')
        rendered.append(f'<function name="{free_of(call.name, *tagged.MARKUP)}">{"".join(parameters)}{_END}')
    return "\n".join(rendered)


SYNTAXES = (Syntax("minicpm5", fixed_markers(CallMarker(read, "<function ")), render),)
