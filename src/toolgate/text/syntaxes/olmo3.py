"""OLMo 3: `<function_calls>f(k=1)⏎g()</function_calls>`; the opening tag is read in `invoke.py`, which shares it."""

from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import python_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.writing import Tools, python_call


def lines(reading: Reading, wrapper: str) -> Steps[None]:
    """Reads calls, one in a line, and the wrapper's closing tag."""
    yield from python_calls.calls(reading, f"</{wrapper}>")


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    """Writes the calls line by line."""
    return f"<function_calls>{chr(10).join([python_call(call) for call in calls])}</function_calls>"
