"""What an attempt at a response finds of earlier ones: the run so far, and what its readers have heard."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.dialects.openai_responses.resumed import Told, read_told
from toolgate.dialects.openai_responses.server import ResponsesEncoder
from toolgate.engine.rounds import Past
from toolgate.engine.teller import Heard
from toolgate.runs.steps import past, read, told
from toolgate.server.endpoints import Question


class Resumption(Struct, frozen=True):
    """The run so far; the frames that are kept, and what they have told."""

    past: Past
    frames: Sequence[bytes] = ()
    told: Told | None = None

    def going_on(self, question: Question) -> tuple[Question, bytes]:
        """The question with a teller that goes on, and the frames that withdraw what does not hold any more."""
        if self.told is None:
            return question, b""
        request = replace(question.request, relay=False)  # a relay numbers its frames from the beginning
        encoder = ResponsesEncoder(request, question.reply)
        return replace(question, request=request, encoder=encoder), encoder.resume(self.told)


def resumption(recorded: Sequence[str], frames: Sequence[bytes]) -> Resumption:
    """What these steps and frames tell; without frames nobody has heard anything."""
    steps = read(recorded)
    known = past(steps)
    if not frames:
        return Resumption(known)
    heard = read_told(frames, told(steps), known.messages)
    return Resumption(replace(known, heard=Heard(heard.begun, heard.ended)), frames, heard)
