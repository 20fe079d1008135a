"""What makes a tool of a function (T2 and the decorator of section 1): schema, injection, and where it starts."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, Literal, TypeVar

import anyio
import anyio.from_thread
import pytest
from pydantic import BaseModel, Field

from middlechain import Agent, App, ConfigurationError, Context, Tool, ToolMessage, ToolUse, tool
from middlechain.testing import ScriptedModel

from .conftest import Go

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class Place(BaseModel):
    city: str = Field(description="The town.")
    zip: int | None = None


@dataclass
class Money:
    amount: int


class Session:
    """A user's own state."""


class NoSchema:
    """Has no JSON form."""


async def results(go: Go, *uses: ToolUse, tools: Any, **options: Any) -> list[tuple[str, bool]]:
    model = ScriptedModel([list(uses), "done"])
    await go(App(), Agent(model=model, tools=tools, **options), "hi")
    return [(m.text, m.is_error) for m in model.calls[-1].messages if isinstance(m, ToolMessage)]


# The schema


def plain(city: str, days: int = 3, units: Literal["c", "f"] = "c", tags: list[str] | None = None) -> str:
    """Tell the weather
    of a place.

    Longer explanations are for people.

    Args:
        city: Where to look,
            as people write it.
        days (int): How far ahead.

    Returns:
        city: this is not about the parameter.
    """
    return f"{city} {days} {units} {tags}"


def test_t2_the_schema_comes_from_the_signature_and_descriptions_from_the_docstring() -> None:
    made = tool(plain)
    assert (made.name, made.description) == ("plain", "Tell the weather of a place.")
    assert made.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Where to look, as people write it."},
            "days": {"type": "integer", "default": 3, "description": "How far ahead."},
            "units": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
    }


def test_t2_descriptions_may_be_in_annotated_fields_and_bounds_with_them() -> None:
    def buy(count: Annotated[int, Field(description="How many.", ge=1)], title: str = "x") -> None: ...

    schema = tool(buy).schema
    assert schema["properties"]["count"] == {"type": "integer", "description": "How many.", "minimum": 1}
    assert list(schema["properties"]) == ["count", "title"], "a parameter named title stays"


def test_t2_without_a_docstring_there_is_no_description_and_without_parameters_an_empty_object() -> None:
    def ping() -> None: ...

    made = tool(ping)
    assert made.description == ""
    assert (made.schema["type"], made.schema["properties"]) == ("object", {})


def test_t2_schemas_can_be_sent() -> None:
    def nested(
        place: Place, money: Money | None = None, either: Place | Money | None = None, free: Any = None
    ) -> None: ...

    schema = tool(nested).schema
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$defs"]["Place"]["properties"]["city"]["description"] == "The town."


async def test_t2_arguments_arrive_as_the_types_of_the_signature(go: Go) -> None:
    got: list[Any] = []

    def nested(place: Place, money: Money, units: Literal["c"] = "c", *, numbers: tuple[int, ...] = ()) -> None:
        got.extend([place, money, units, numbers])

    args = {"place": {"city": "Bern"}, "money": {"amount": 3}, "numbers": [1, 2]}
    assert await results(go, ToolUse("nested", args), tools=[nested]) == [("null", False)]
    assert got == [Place(city="Bern"), Money(3), "c", (1, 2)]


@pytest.mark.parametrize("name", ["model_config", "schema", "json", "copy", "_private", "model_fields", "ctx", "input"])
async def test_t2_no_parameter_name_is_special(go: Go, name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def echo({name}: str): return {name}", space)  # the name of a parameter cannot be a parameter
    made = tool(space["echo"])
    assert list(made.schema["properties"]) == [name]
    assert await results(go, ToolUse("echo", {name: "x"}), tools=[made]) == [("x", False)]


async def test_t2_positional_only_parameters_and_defaults_work_as_in_python(go: Go) -> None:
    default: list[int] = [1]

    def odd(a: int, b: int = 2, /, c: int = 3, *, d: list[int] = default) -> str:
        return f"{a}{b}{c} {d is default}"

    def gap(a: int = 1, b: int = 2, /, c: int = 3) -> str:
        return f"{a}{b}{c}"

    uses = [ToolUse("odd", {"a": 1}), ToolUse("odd", {"a": 9, "c": 7, "d": [1]}), ToolUse("gap", {"b": 9})]
    found = await results(go, *uses, tools=[odd, gap])
    assert found == [("123 True", False), ("927 False", False), ("193", False)]


def test_t2_a_default_that_has_no_json_form_is_no_obstacle() -> None:
    missing = object()

    def find(q: str, start: Any = missing, top: float = math.inf, place: Place = Place(city="Bern")) -> None: ...  # noqa: B008

    schema = tool(find).schema
    assert schema["required"] == ["q"]
    assert schema["properties"]["top"] == {"type": "number"}
    json.dumps(schema, allow_nan=False)


# Injection


def with_context(n: int, ctx: Context) -> str:
    return f"{n} {ctx.agent.name}"


def with_typed(n: int, any_name: Context[Session]) -> str:
    return f"{n} {any_name.agent.name}"


def with_optional(n: int, c: Context | None = None) -> str:
    return f"{n} {c and c.agent.name}"


def with_annotated(n: int, c: Annotated[Context[Any], "the run"]) -> str:
    return f"{n} {c.agent.name}"


def with_context_first(ctx: Context, /, n: int) -> str:
    return f"{n} {ctx.agent.name}"


async def with_context_async(*, ctx: Context, n: int) -> str:
    return f"{n} {ctx.agent.name}"


@pytest.mark.parametrize(
    "function",
    [with_context, with_typed, with_optional, with_annotated, with_context_first, with_context_async],
    ids=lambda f: f.__name__,
)
async def test_t2_a_parameter_annotated_context_is_injected_and_hidden_from_the_model(
    go: Go, function: Callable[..., Any]
) -> None:
    made = tool(name="work")(function)
    assert list(made.schema["properties"]) == ["n"]
    assert await results(go, ToolUse("work", {"n": 1}), tools=[made], name="me") == [("1 me", False)]


@pytest.mark.parametrize("name", ["ctx", "any_name"])
async def test_t2_the_model_cannot_fill_in_the_context(go: Go, name: str) -> None:
    made = tool(name="work")(with_context if name == "ctx" else with_typed)
    ((text, is_error),) = await results(go, ToolUse("work", {"n": 1, name: "mine"}), tools=[made])
    assert is_error
    assert name in text


# What is refused


def test_t2_two_tools_of_one_name_are_refused_when_the_agent_is_built_naming_both() -> None:
    """B51 c: as keyword and as class attribute."""

    def read_file() -> None: ...

    def read_page() -> None: ...

    pair = [tool(name="read")(read_file), tool(name="read")(read_page)]
    with pytest.raises(ConfigurationError, match=r"'read'.*read_file.*read_page.*tool\(name=\.\.\.\)$"):
        Agent(name="a", tools=pair)
    with pytest.raises(ConfigurationError, match=r"Reader.*'read'.*read_file.*read_page"):
        type("Reader", (Agent,), {"tools": pair})
    assert Agent(tools=[pair[0], tool(name="read2")(read_page)])


def variadic(*names: str) -> None: ...


def keywords(**names: str) -> None: ...


def unresolved(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # that is the point


def no_schema(thing: NoSchema) -> None: ...


class Holder:
    def method(self, n: int) -> int:
        return n + 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (variadic, r"\*names.*'variadic'.*name each parameter$"),
        (keywords, r"\*\*names.*'keywords'.*name each parameter$"),
        (unresolved, r"'unresolved'.*Nowhere"),
        (no_schema, r"(?s)'no_schema'.*annotate"),
        (Holder.method, r"'Holder.method'.*self.*bound method"),
        (42, "42.*give it a function$"),
    ],
)
def test_t2_a_signature_that_cannot_be_described_is_refused_by_name(function: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tool(function)
    with pytest.raises(ConfigurationError, match=words):
        Agent(tools=[function])


@pytest.mark.parametrize("given", [plain, tool(plain), "plain", 42, None])
def test_section_1_tools_are_a_list(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"tools of a.*give a list(: tools=\[.*\]| of tools)$"):
        Agent(name="a", tools=given)


# The decorator


def test_section_1_the_decorator_takes_its_options_in_both_forms() -> None:
    def work() -> str:
        """Old words."""
        return "worked"

    for made in (
        tool(name="job", description="New words.", expose_errors=True, max_result_chars=50)(work),
        tool(name="job", description="New words.", expose_errors=True, max_result_chars=50)(tool(work)),
    ):
        assert isinstance(made, Tool)
        assert (made.name, made.description, made.expose_errors, made.max_result_chars) == (
            "job",
            "New words.",
            True,
            50,
        )
        assert made() == "worked", "calling it calls the function"
    bare = tool(work)
    assert (bare.name, bare.description, bare.expose_errors, bare.max_result_chars) == (
        "work",
        "Old words.",
        False,
        None,
    )
    assert tool()(work).name == "work"


def test_section_1_unknown_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'expose'.*name, description, expose_errors, max_result_chars, approve$"
    ):
        tool(expose=True)  # type: ignore[call-overload]


# Where a tool starts


class Calling:
    async def __call__(self) -> int:
        return threading.get_ident()


class CallingPlainly:
    def __call__(self) -> int:
        return threading.get_ident()


class Methods:
    async def on_loop(self) -> int:
        return threading.get_ident()

    def in_thread(self) -> int:
        return threading.get_ident()


async def on_loop(n: int = 0) -> int:
    return threading.get_ident()


def in_thread(n: int = 0) -> int:
    return threading.get_ident()


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def wrapped_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> int:
        return threading.get_ident()

    return wrapper


async def on_loop_generator() -> AsyncIterator[int]:
    yield threading.get_ident()


ON_LOOP = [on_loop, partial(on_loop, n=1), wrapped(on_loop), partial(wrapped(on_loop), n=1), wrapped(wrapped(on_loop)),
           wrapped_async(on_loop), wrapped_async(in_thread), Calling(), Methods().on_loop]  # fmt: skip
IN_THREAD = [in_thread, partial(in_thread, n=1), wrapped(in_thread), CallingPlainly(), Methods().in_thread,
             lambda: threading.get_ident()]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "is_loop"), [*((f, True) for f in ON_LOOP), *((f, False) for f in IN_THREAD)], ids=lambda v: None
)
async def test_t2_async_tools_start_on_the_loop_and_others_in_a_worker_thread(
    go: Go, function: Callable[..., Any], is_loop: bool
) -> None:
    """B39: also behind partial, wraps and __call__."""
    ((text, is_error),) = await results(go, ToolUse("work"), tools=[tool(name="work")(function)])
    assert not is_error
    assert (int(text) == threading.get_ident()) is is_loop


async def test_t2_what_a_thread_gives_back_is_awaited_or_consumed_on_the_loop(go: Go) -> None:
    starts: list[int] = []

    def gives_coroutine() -> Any:
        starts.append(threading.get_ident())
        return on_loop()

    def gives_generator() -> Iterator[int]:
        yield threading.get_ident()

    def gives_async_generator() -> Any:
        starts.append(threading.get_ident())
        return on_loop_generator()

    tools = [gives_coroutine, gives_generator, gives_async_generator]
    found = await results(go, *(ToolUse(f.__name__) for f in tools), tools=tools)
    here = threading.get_ident()
    assert [text for text, _ in found] == [f"{here}", f"[{here}]", f"[{here}]"]
    assert len(starts) == 2
    assert here not in starts


VAR: ContextVar[str] = ContextVar("VAR", default="unset")


async def test_t2_sync_tools_of_one_reply_run_side_by_side_and_the_loop_goes_on(go: Go) -> None:
    """B39: they meet at a barrier, wait for something that only the loop can do, and see the run's variables."""
    barrier = threading.Barrier(2)
    beats = threading.Event()
    entered = anyio.Event()
    seen: list[str] = []

    def block() -> str:
        barrier.wait(10)
        anyio.from_thread.run_sync(entered.set)
        seen.append(VAR.get())
        assert beats.wait(10)
        VAR.set("a tool's own")
        return "ok"

    async def heartbeat() -> None:
        await entered.wait()
        beats.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat)
        hooks = [{"before_run": lambda given, ctx: VAR.set("the run's") and None}]
        found = await results(go, ToolUse("block"), ToolUse("block"), tools=[block], hooks=hooks)
    assert found == [("ok", False)] * 2
    assert seen == ["the run's"] * 2
    assert VAR.get() == "unset"


async def test_h9_a_tool_that_changes_its_arguments_reaches_nobody_else(go: Go) -> None:
    """B06 a: not history, not after_tool, not a second call with equal arguments, not a retry."""
    seen: list[Any] = []

    @tool
    async def spoil(path: str, opts: dict[str, list[int]], free: Any) -> str:
        text = f"{opts} {free}"
        opts["tags"].append(2)
        free["deep"].clear()
        return text

    async def twice(call: Any, next: Any) -> Any:
        try:
            await next(call.replace(args={**call.args, "path": 3}))
            raise KeyError
        except KeyError:
            return await next()

    args = {"path": "a", "opts": {"tags": [1]}, "free": {"deep": [1]}}
    model = ScriptedModel([[ToolUse("spoil", args, "c1"), ToolUse("spoil", args, "c2")], "done"])
    agent = Agent(model=model, tools=[spoil], hooks=[{"after_tool": lambda result, ctx: seen.append(result.args)}])
    result = await go(App(), agent, "hi")
    assert [m.text for m in result.messages if isinstance(m, ToolMessage)] == ["{'tags': [1]} {'deep': [1]}"] * 2
    assert seen == [args, args]
    sent = result.messages[1]
    assert [json.loads(use.arguments) for use in sent.tool_calls] == [args, args]  # type: ignore[union-attr]  # an Assistant
