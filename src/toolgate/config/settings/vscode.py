"""The settings of the bridge to VS Code."""

from typing import Annotated

from msgspec import Struct

from toolgate.config.settings.field import about
from toolgate.config.settings.models import TimeoutSettings
from toolgate.config.settings.tools import Stance


class VscodeSettings(Struct, frozen=True, kw_only=True):
    """The bridge over which VS Code lends its models and tools."""

    enabled: Annotated[
        bool, about("Whether editors may join at /bridge; they lend nothing until their person switches it on.")
    ] = True
    approvals: Annotated[bool, about("Whether calls that wait for approval are shown in editors that have joined.")] = (
        True
    )
    tools: Annotated[
        Stance,
        about(
            "Whether calls of the editor's tools run, wait for approval here or are denied, where no rule of"
            " `tools.approvals` matches. The editor asks its person about calls with effects in any case."
        ),
    ] = "allow"
    concurrency: Annotated[
        int, about("Most requests to the models of one window at the same time; others wait.", ge=1, le=64)
    ] = 16
    consent_seconds: Annotated[
        float, about("Seconds for which a request waits for the person to allow the use of a model.", gt=0)
    ] = 120.0
    tool_seconds: Annotated[
        float, about("Seconds that a tool of the editor may take; its person may have to answer a dialog.", gt=0)
    ] = 120.0
    timeouts: Annotated[TimeoutSettings, about("Seconds that a model of the editor may take to answer.")] = (
        TimeoutSettings()
    )
