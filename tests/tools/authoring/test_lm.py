"""The API for authors of tools: hints become schemas, values become results, class-form tools prepare and invoke."""

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from toolgate import lm
from toolgate.conversation.message import Media, Text
from toolgate.tools.authoring.results import NO_OUTPUT, error_text, output_of
from toolgate.tools.authoring.type_hints import HintSchema, TypeHintMismatch
from toolgate.tools.tool import CallProgressUpdate, ServerToolDefinition, ToolCallFailed, ToolCallInput, ToolOutput

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 1.0
    tags: list[str] = field(default_factory=list)


class Options(TypedDict):
    depth: int
    hidden: NotRequired[bool]


class Tree(Struct):
    label: str
    kids: "list[Tree]" = []


class Circle(Struct, tag="circle"):
    radius: float


class Square(Struct, tag="square"):
    side: float


@pytest.fixture
def registry() -> Iterator[lm.Registry]:
    registry = lm.Registry()
    with registry.current():
        yield registry


def spec_of(registry: lm.Registry, name: str) -> ServerToolDefinition:
    tool = registry.find(name)
    assert tool is not None
    return tool.spec


async def run(
    registry: lm.Registry, name: str, report_progress: Callable[[CallProgressUpdate], None] = print, **arguments: Any
) -> ToolOutput:
    tool = registry.find(name)
    assert tool is not None
    return await tool.invoke(
        ToolCallInput("call_1", arguments, msgspec.json.encode(arguments).decode(), report=report_progress)
    )


def test_a_function_is_described_by_its_name_docstring_and_hints(registry: lm.Registry) -> None:
    @lm.tool
    def find(query: str, limit: Annotated[int, "At most so many."] = 10, *, where: Colour | None = None) -> str:
        """Find things
        by words.

        More for people.

        Args:
            query: What to look for,
                in plain words.
            limit: Not this text.
        """
        return query

    assert find("still callable") == "still callable"
    spec = spec_of(registry, "find")
    assert spec.description == "Find things by words."
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in plain words."},
            "limit": {"type": "integer", "description": "At most so many.", "default": 10},
            "where": {"anyOf": [{"title": "Colour", "enum": ["blue", "red"]}, {"type": "null"}], "default": None},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_param_fields_describe_parameters_too(registry: lm.Registry) -> None:
    @lm.tool
    def move(to: str, speed: float) -> None:
        """Move.

        :param to: Where to,
            by name.
        :param float speed: How fast.
        :returns: nothing
        """

    fields = spec_of(registry, "move").input_schema["properties"]
    assert fields["to"]["description"] == "Where to, by name."
    assert fields["speed"]["description"] == "How fast."


def test_every_field_of_a_tool_can_be_set_in_the_decorator(registry: lm.Registry) -> None:
    """spec: R1"""
    annotations = lm.Annotations(read_only=True, destructive=False, idempotent=True, open_world=False)

    @lm.tool(
        name="search-files",
        description="Searches.",
        display_name="Search files",
        reference_name="searchFiles",
        user_description="Looks for files.",
        icon="search",
        tags=["files", "search"],
        when="mode == 'edit'",
        private=True,
        annotations=annotations,
        approval="ask",
        timeout=3,
        cache_seconds=60,
    )
    def search() -> None:
        """Ignored."""

    assert spec_of(registry, "search-files") == ServerToolDefinition(
        name="search-files",
        source="python",
        description="Searches.",
        input_schema={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        display_name="Search files",
        reference_name="searchFiles",
        user_description="Looks for files.",
        icon="search",
        tags=("files", "search"),
        when="mode == 'edit'",
        private=True,
        annotations=annotations,
        approval="ask",
        timeout=3,
        cache_seconds=60,
    )
    assert registry.tools == []


async def test_arguments_arrive_in_the_hinted_types(registry: lm.Registry) -> None:
    seen: list[Any] = []

    @lm.tool
    async def take(
        point: Point, colour: Colour, day: date, moment: datetime, options: Options, many: tuple[int, str]
    ) -> None:
        """Take it."""
        seen.extend([point, colour, day, moment, options, many])

    await run(
        registry,
        "take",
        point={"x": 1.0},
        colour="red",
        day="2026-01-31",
        moment="2026-01-31T10:00:00",
        options={"depth": 2},
        many=[1, "a"],
    )
    assert seen == [Point(1), Colour.RED, date(2026, 1, 31), datetime(2026, 1, 31, 10), {"depth": 2}, (1, "a")]


async def test_a_default_of_the_function_holds_where_nothing_was_passed(registry: lm.Registry) -> None:
    sentinel = object()

    @lm.tool
    async def whether(given: int = sentinel) -> bool:  # type: ignore[assignment]
        """Whether it was given."""
        return given is not sentinel

    assert (await run(registry, "whether")).structured is False
    assert (await run(registry, "whether", given=1)).structured is True


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"point": {"x": "one"}}, "Expected `int`, got `str` - at `$.point.x`"),
        ({"point": {"x": 1.5}}, "Expected `int`, got `float` - at `$.point.x`"),
        ({"point": {"x": 1, "z": 2}}, "unknown field `z` - at `$.point`"),
        ({"point": {"x": 1}, "extra": 1}, "unknown field `extra`"),
        ({}, "missing required field `point`"),
    ],
)
async def test_arguments_that_do_not_fit_never_reach_the_tool(
    registry: lm.Registry, arguments: dict[str, Any], complaint: str
) -> None:
    """spec: R6"""

    @lm.tool
    async def take(point: Point) -> None:
        """Take it."""
        pytest.fail("it ran")

    with pytest.raises(lm.ToolFailure) as failure:
        await run(registry, "take", **arguments)
    assert complaint in str(failure.value)


def untyped(x) -> None:  # type: ignore[no-untyped-def]
    """No hint."""


def spread(*names: str) -> None:
    """Any number."""


def keyed(by: dict[int, str]) -> None:
    """Keys that are no strings."""


def either(what: str | date) -> None:
    """Two kinds of string."""


def odd(number: complex) -> None:
    """No JSON."""


@pytest.mark.parametrize("function", [untyped, spread, keyed, either, odd])
def test_a_parameter_that_no_schema_describes_is_refused_by_name(
    registry: lm.Registry, function: Callable[..., None]
) -> None:
    parameter = next(iter(function.__code__.co_varnames))
    with pytest.raises(lm.BadTool, match=rf"`{function.__name__}`, parameter `{parameter}`: "):
        lm.tool(function)


def test_a_function_without_a_description_is_refused(registry: lm.Registry) -> None:
    def mute() -> None: ...

    with pytest.raises(lm.BadTool, match="no description"):
        lm.tool(mute)


def test_a_second_tool_of_one_name_is_refused_and_both_places_are_named(registry: lm.Registry) -> None:
    @lm.tool(name="same")
    def first() -> None:
        """First."""

    def second() -> None:
        """Second."""

    with pytest.raises(lm.BadTool, match=r"test_lm\.py:\d+ is refused: .*test_lm\.py:\d+ has"):
        lm.tool(name="same")(second)


def test_definitions_stand_in_place_unless_they_contain_themselves() -> None:
    assert "$defs" not in HintSchema(list[Point]).schema
    tree = HintSchema(Tree).schema
    assert tree == {"$ref": "#/$defs/Tree", "$defs": {"Tree": tree["$defs"]["Tree"]}}
    assert tree["$defs"]["Tree"]["additionalProperties"] is False


HINTS: dict[str, Any] = {
    "text": str,
    "whole": int,
    "number": float,
    "bool": bool,
    "nothing": None,
    "choice": Literal["a", "b", 1],
    "enum": Colour,
    "list": list[int],
    "pair": tuple[int, str],
    "row": tuple[bool, ...],
    "mapping": dict[str, int | None],
    "optional": str | None,
    "union": int | str | list[float] | None,
    "bounded": Annotated[int, Meta(ge=0, lt=10)],
    "short": Annotated[str, Meta(min_length=1, max_length=3)],
    "dataclass": Point,
    "typed dict": Options,
    "tree": Tree,
    "tagged": Circle | Square | None,
    "deep": dict[str, list[Point | None]],
    "anything": Any,
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.sampled_from([1.0, 1.5, -0.0, 10**20, 1e300])
    | st.sampled_from(["a", "b", "red", "blue", "", "long text", "circle", "square"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x", "y", "tags", "depth", "hidden", "label", "kids", "type", "radius", "side", "other"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
NEAR = {
    "dataclass": st.fixed_dictionaries(
        {"x": st.integers() | VALUES},
        optional={"y": st.just(1.5) | VALUES, "tags": st.just(["a"]) | VALUES, "z": VALUES},
    ),
    "typed dict": st.fixed_dictionaries({"depth": VALUES}, optional={"hidden": VALUES, "other": VALUES}),
    "tagged": st.fixed_dictionaries(
        {"type": st.sampled_from(["circle", "square", "other"])},
        optional={"radius": st.just(1.5) | VALUES, "side": st.just(2) | VALUES},
    ),
    "tree": st.recursive(
        st.fixed_dictionaries({"label": st.just("a") | VALUES}, optional={"other": VALUES}),
        lambda inner: st.fixed_dictionaries({"label": st.just("a"), "kids": st.lists(inner, max_size=2)}),
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_schema_accepts_exactly_what_conversion_accepts(name: str) -> None:
    """spec: R6"""
    shape = HintSchema(HINTS[name])
    validator = jsonschema_rs.validator_for(shape.schema)

    @given(VALUES | NEAR.get(name, VALUES))
    def agree(value: Any) -> None:
        try:
            shape.convert(value)
            converted = True
        except TypeHintMismatch:
            converted = False
        assert validator.is_valid(value) == converted, value

    agree()


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("words", "words", None),
        (None, NO_OUTPUT, None),
        ("", "", None),
        (3, "3", 3),
        (True, "true", True),
        ({"a": [1, None]}, '{"a":[1,null]}', {"a": [1, None]}),
        (Point(1), '{"x":1,"y":1.0,"tags":[]}', {"x": 1, "y": 1.0, "tags": []}),
        (Tree("a"), '{"label":"a","kids":[]}', {"label": "a", "kids": []}),
        ([Colour.RED, date(2026, 1, 31)], '["red","2026-01-31"]', ["red", "2026-01-31"]),
        ([math.nan, math.inf, -math.inf], '["NaN","Infinity","-Infinity"]', ["NaN", "Infinity", "-Infinity"]),
        ("half \ud800 character", "half \ufffd character", None),
        ({"\ud800": "\udfff"}, '{"\ufffd":"\ufffd"}', {"\ufffd": "\ufffd"}),
        ("grüße".encode(), "grüße", None),
        (b"\xff\xfe\x00", "[The tool returned 3 bytes that are neither text nor a picture.]", None),
        (lm.LanguageModelToolResult([]), NO_OUTPUT, None),
        (lm.LanguageModelDataPart.json({"a": 1}), '{"a":1}', {"a": 1}),
        (lm.LanguageModelDataPart.text("# hi", "text/markdown"), "# hi", None),
    ],
)
def test_returned_values_become_text_and_data(value: Any, text: str, structured: Any) -> None:
    """fault: T3"""
    assert output_of(value) == ToolOutput((Text(text),), structured=structured)


def test_pictures_become_media() -> None:
    picture = Media("image", "image/png", "iVBORw0KGgoAAAAAAAAAAA==")
    assert output_of(PNG) == ToolOutput((picture,))
    text, image = lm.LanguageModelTextPart("Here:"), lm.LanguageModelDataPart.image(PNG, "image/png")
    assert output_of(lm.LanguageModelToolResult([text, image])) == ToolOutput((Text("Here:"), picture))


def deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "value",
    [
        deep(),
        cyclic(),
        object(),
        {(1, 2): 3},
        lm.LanguageModelToolResult("text"),  # type: ignore[arg-type]
        lm.LanguageModelToolResult([1]),  # type: ignore[list-item]
        lm.LanguageModelDataPart(bytes(2000), "image/png"),
    ],
    ids=["deep", "cyclic", "object", "key", "content", "part", "large"],
)
def test_values_that_are_no_result_fail_with_a_message(value: Any) -> None:
    """fault: T3"""
    with pytest.raises(lm.ToolFailure, match="The tool returned"):
        output_of(value, 1000)


def test_long_text_is_cut_visibly() -> None:
    """fault: T3"""
    (part,) = output_of("é" * 1000, 100).content
    assert isinstance(part, Text)
    assert part.text == "é" * 50 + "\n[cut here: the tool returned 1,000 characters]"


def test_an_exception_is_reported_by_its_type_and_message_alone() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    assert error_text(ValueError("no such city")) == "ValueError: no such city"
    assert error_text(KeyError()) == "KeyError"
    assert error_text(lm.ToolFailure("Try another city.")) == "Try another city."
    assert error_text(SystemExit(3)) == "The tool called exit with status 3."
    assert error_text(Rude()) == "Rude: its message could not be made"
    assert len(error_text(ValueError("x" * 10_000_000))) < 3000


class Delete:
    """Deletes a file."""

    tags = ("files",)

    def prepare_invocation(
        self, options: lm.LanguageModelToolInvocationPrepareOptions[Point], token: lm.CancellationToken
    ) -> lm.PreparedToolInvocation:
        asked = lm.ConfirmationMessages("Delete?", f"Really delete {options.input.x}?")
        return lm.PreparedToolInvocation("Deleting", asked)

    async def invoke(
        self, options: lm.LanguageModelToolInvocationOptions[Point], token: lm.CancellationToken
    ) -> lm.LanguageModelToolResult:
        options.progress.report("deleting", 1, 2)
        text = f"{options.input!r} for {options.tool_invocation_token.call_id}"
        return lm.LanguageModelToolResult([lm.LanguageModelTextPart(text)])


async def test_a_class_form_tool_prepares_and_invokes(registry: lm.Registry) -> None:
    """spec: R4"""
    disposable = lm.register_tool("delete", Delete(), approval="ask")
    tool = registry.find("delete")
    assert tool is not None
    assert (tool.spec.description, tool.spec.tags, tool.spec.approval) == ("Deletes a file.", ("files",), "ask")
    assert tool.spec.input_schema["required"] == ["x"]
    prepared = await tool.prepare(ToolCallInput("call_1", {"x": 7}, '{"x": 7}'))
    assert (prepared.message, prepared.title, prepared.question) == ("Deleting", "Delete?", "Really delete 7?")
    reports: list[CallProgressUpdate] = []
    output = await run(registry, "delete", reports.append, x=7)
    assert output.content == (Text("Point(x=7, y=1.0, tags=[]) for call_1"),)
    assert reports == [CallProgressUpdate("deleting", 1, 2)]
    disposable.dispose()
    assert registry.find("delete") is None


@pytest.mark.parametrize(
    ("reported", "received"),
    [
        ((5, 1, 2), CallProgressUpdate("5", 1, 2)),
        (("a\ud800",), CallProgressUpdate("a\ufffd")),
        (("x" * 10_000,), CallProgressUpdate("x" * 2000)),
        ((None, math.nan, math.inf), CallProgressUpdate()),
        ((None, 10**400, {1}), CallProgressUpdate()),
        ((None, 0.5, "3"), CallProgressUpdate(None, 0.5)),
    ],
)
def test_reports_hold_what_can_be_sent(reported: tuple[Any, ...], received: CallProgressUpdate) -> None:
    reports: list[CallProgressUpdate] = []
    lm.Progress(reports.append).report(*reported)
    assert reports == [received]


@pytest.mark.parametrize("shown", [5, float("nan"), {"a": 1}, None])
async def test_a_question_that_is_no_text_fails_the_call(registry: lm.Registry, shown: Any) -> None:
    class Asking(Delete):
        def prepare_invocation(self, options: Any, token: Any) -> lm.PreparedToolInvocation:
            return lm.PreparedToolInvocation(None, lm.ConfirmationMessages(shown, "Really?"))

    lm.register_tool("asking", Asking(), description="Asks.")
    tool = registry.find("asking")
    assert tool is not None
    with pytest.raises(ToolCallFailed, match="in place of a text"):
        await tool.prepare(ToolCallInput("call_1", {"x": 7}, '{"x": 7}'))


async def test_halves_of_surrogate_pairs_in_a_question_are_replaced(registry: lm.Registry) -> None:
    class Asking(Delete):
        def prepare_invocation(self, options: Any, token: Any) -> lm.PreparedToolInvocation:
            return lm.PreparedToolInvocation("a\ud800", lm.ConfirmationMessages("b\ud800", "c\ud83d\ude00"))

    lm.register_tool("asking", Asking(), description="Asks.")
    tool = registry.find("asking")
    assert tool is not None
    prepared = await tool.prepare(ToolCallInput("call_1", {"x": 7}, '{"x": 7}'))
    assert (prepared.message, prepared.title, prepared.question) == ("a\ufffd", "b\ufffd", "c\U0001f600")


async def test_tools_are_listed_and_invoked_by_name_with_checked_input(registry: lm.Registry) -> None:
    """spec: R4, R5, R6: a private tool is callable by name and never listed; its input is checked all the same."""
    lm.register_tool("delete", Delete(), private=True)

    @lm.tool
    def twice(n: int) -> int:
        """Twice as much."""
        return n * 2

    assert [tool.name for tool in lm.tools] == ["twice"]
    result = await lm.invoke_tool("twice", lm.LanguageModelToolInvocationOptions({"n": 2}))
    assert result == lm.LanguageModelToolResult((lm.LanguageModelTextPart("4"),))
    await lm.invoke_tool("delete", lm.LanguageModelToolInvocationOptions({"x": 1}))
    for name, input in (("twice", {"n": "2"}), ("twice", {"n": 2, "m": 3}), ("delete", {}), ("absent", {})):
        with pytest.raises(lm.ToolFailure):
            await lm.invoke_tool(name, lm.LanguageModelToolInvocationOptions(input))


async def test_a_token_cancels_an_invoked_tool(registry: lm.Registry) -> None:
    started, told_of = asyncio.Event(), asyncio.Event()

    @lm.tool
    async def wait(token: lm.CancellationToken) -> None:
        """Wait."""
        token.on_cancellation_requested(told_of.set)
        started.set()
        await asyncio.Event().wait()

    source = lm.CancellationTokenSource()
    call = asyncio.create_task(lm.invoke_tool("wait", lm.LanguageModelToolInvocationOptions({}), source.token))
    await started.wait()
    source.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert told_of.is_set()


async def test_async_code_that_ignores_its_cancellation_is_not_waited_for(registry: lm.Registry) -> None:
    """fault: T1"""
    started, enough = asyncio.Event(), asyncio.Event()

    @lm.tool
    async def stubborn() -> None:
        """Never stops."""
        started.set()
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue

    call = asyncio.create_task(run(registry, "stubborn"))
    await started.wait()
    call.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await call
    enough.set()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (SystemExit(2), "The tool called exit with status 2."),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "The tool cancelled itself."),
    ],
    ids=["exception", "exit", "interrupt", "cancelled"],
)
async def test_whatever_async_code_raises_fails_only_its_call(
    registry: lm.Registry, error: BaseException, message: str
) -> None:
    """fault: T2"""

    @lm.tool
    async def bad() -> None:
        """Raises."""
        raise error

    with pytest.raises(lm.ToolFailure) as failure:
        await run(registry, "bad")
    assert str(failure.value) == message


def test_listeners_of_a_token_are_called_once_and_can_leave() -> None:
    source = lm.CancellationTokenSource()
    calls: list[str] = []

    def fails() -> None:
        raise ValueError

    source.token.on_cancellation_requested(fails)
    source.token.on_cancellation_requested(lambda: calls.append("stays"))
    with source.token.on_cancellation_requested(lambda: calls.append("left")):
        pass
    assert not source.token.is_cancellation_requested
    source.cancel()
    source.cancel()
    source.token.on_cancellation_requested(lambda: calls.append("late"))
    assert calls == ["stays", "late"]
    assert source.token.wait(0)
