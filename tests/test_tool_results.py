"""What a tool returns, as text for the model (T6), and how much of it the model gets."""

from __future__ import annotations

import base64
import decimal
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from enum import Enum, IntEnum, StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from middlechain import Agent, App, Context, Next, ToolCall, ToolError, ToolMessage, ToolOutput, ToolUse, tool
from middlechain.testing import ScriptedModel

from .conftest import Go

pytestmark = pytest.mark.anyio


class Colour(StrEnum):
    RED = "red"


class OldColour(str, Enum):  # noqa: UP042  # the older spelling is still everywhere
    BLUE = "blue"


class Plain(Enum):
    NAME = "a name"
    PAIR = (1, "x")
    OPAQUE = object()


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    tags: list[Any] = field(default_factory=list)


class Person(BaseModel):
    name: str
    born: date | None = None
    secret: SecretStr = SecretStr("1234")
    more: Any = None


class Pair(NamedTuple):
    left: int
    right: Any


class Shouting(str):
    """A subclass whose looks are not its value."""

    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


BLOB = b"\x00\xff\x10"
CODED = base64.b64encode(BLOB).decode()
WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
LOOP: list[Any] = []
LOOP.append(LOOP)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


VALUES: list[tuple[Any, str]] = [
    ("as is", "as is"),
    ('"quoted" \\ \n', '"quoted" \\ \n'),
    ("", ""),
    ("grüß 🎉", "grüß 🎉"),
    (Shouting("quiet"), "quiet"),
    (None, "null"),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-7, "-7"),
    (10**30, str(10**30)),
    (1.5, "1.5"),
    (math.nan, '"NaN"'),
    (math.inf, '"Infinity"'),
    (-math.inf, '"-Infinity"'),
    ({}, "{}"),
    ([], "[]"),
    ({"a": [1, None, "grüß"], "b": {"c": math.nan}}, '{"a":[1,null,"grüß"],"b":{"c":"NaN"}}'),
    ({7: "a", None: "b", True: "c", 2.5: "d"}, '{"7":"a","null":"b","true":"c","2.5":"d"}'),
    ({Colour.RED: 1, Level.HIGH: 2, date(2024, 5, 6): 3}, '{"red":1,"3":2,"2024-05-06":3}'),
    (MappingProxyType({"a": 1}), '{"a":1}'),
    ([1, "a", [2]], '[1,"a",[2]]'),
    ((1, (2,)), "[1,[2]]"),
    (Pair(1, {2}), "[1,[2]]"),
    ({3, 1, 2}, "[1,2,3]"),
    (frozenset({"b", "a"}), '["a","b"]'),
    (Point(1, [Point(2)]), '{"x":1,"tags":[{"x":2,"tags":[]}]}'),
    (Point(1, [math.inf, BLOB, {"k"}]), f'{{"x":1,"tags":["Infinity","{CODED}",["k"]]}}'),
    (
        Person(name="Ann", born=date(2000, 1, 2), more=math.nan),
        '{"name":"Ann","born":"2000-01-02","secret":"**********","more":"NaN"}',
    ),
    (Person(name="Ann", more=BLOB), f'{{"name":"Ann","born":null,"secret":"**********","more":"{CODED}"}}'),
    (Colour.RED, "red"),
    (OldColour.BLUE, "blue"),
    ([Colour.RED, OldColour.BLUE], '["red","blue"]'),
    (Plain.NAME, '"a name"'),
    (Plain.PAIR, '[1,"x"]'),
    (Level.HIGH, "3"),
    (decimal.Decimal("1.10"), '"1.10"'),
    ({"price": decimal.Decimal("1.10")}, '{"price":"1.10"}'),
    (WHEN, '"2024-05-06T07:08:09Z"'),
    (date(2024, 5, 6), '"2024-05-06"'),
    (time(7, 8), '"07:08:00"'),
    ([WHEN], '["2024-05-06T07:08:09Z"]'),
    (BLOB, CODED),
    (bytearray(BLOB), CODED),
    ({"blob": BLOB}, f'{{"blob":"{CODED}"}}'),
    ([BLOB], f'["{CODED}"]'),
    ("a\ud800b\udc00", "a\ufffdb\ufffd"),
    ({"\udfff": ["\ud800"]}, '{"\ufffd":["\ufffd"]}'),
    (ToolOutput("made"), "made"),
    (ToolOutput(""), ""),
    (ToolOutput({"a": 1}), '{"a":1}'),  # what is no text becomes text
    (ToolOutput(None), "null"),
    (ToolOutput("a\ud800"), "a\ufffd"),
]

NO_TEXT = {
    "an object": object(),
    "a function": deep,
    "a class": Point,
    "an exception": ValueError("x"),
    "a module": json,
    "a lock": threading.Lock(),
    "inside a list": [1, object()],
    "inside a dict": {"a": object()},
    "inside a dataclass": Point(1, [object()]),
    "inside a model": Person(name="Ann", more=object()),
    "an enum of one": Plain.OPAQUE,
    "a key": {(1, 2): 3},
    "itself": LOOP,
    "a context": "ctx",
}


class Lab:
    """An agent that calls one tool, named `work`."""

    def __init__(self, *functions: Any, hooks: Any = ()) -> None:
        self.model = ScriptedModel([[ToolUse(f"work{n or ''}", {}, f"c{n}") for n in range(len(functions))], "done"])
        tools = [f if hasattr(f, "schema") else tool(name=f"work{n or ''}")(f) for n, f in enumerate(functions)]
        self.seen: list[ToolOutput] = []

        async def look(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> None:
            self.seen.append(await next())

        self.app = App().use(tool=look)
        self.agent = Agent(model=self.model, tools=tools, hooks=hooks)

    @property
    def results(self) -> list[tuple[str, bool]]:
        last = self.model.calls[-1].messages
        return [(m.text, m.is_error) for m in last if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(("value", "text"), VALUES)
async def test_t6_every_kind_of_value_becomes_text_of_a_known_form(
    go: Go, value: Any, text: str, is_async: bool
) -> None:
    async def on_loop() -> Any:
        return value

    def in_thread() -> Any:
        return value

    lab = Lab(on_loop if is_async else in_thread)
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert lab.results == [(text, False)]
    assert [(output.content, output.is_error) for output in lab.seen] == [(text, False)], "layers see text already"
    text.encode()


@pytest.mark.parametrize("case", NO_TEXT)
async def test_t6_what_cannot_be_converted_is_an_error_result_that_names_the_tool_and_no_repr(
    go: Go, case: str
) -> None:
    async def work(ctx: Context) -> Any:
        return ctx if NO_TEXT[case] == "ctx" else NO_TEXT[case]

    lab = Lab(work)
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    ((text, is_error),) = lab.results
    assert is_error
    assert "'work'" in text
    assert " at 0x" not in text
    assert "<" not in text
    assert isinstance(lab.seen[0].error, Exception)


async def test_t6_a_value_nested_beyond_reason_is_an_error_result_too(go: Go) -> None:
    lab = Lab(partial(deep, levels=100_000))
    assert (await go(lab.app, lab.agent, "hi")).text == "done"
    assert [is_error for _, is_error in lab.results] == [True]


async def test_t6_a_tool_output_keeps_its_mark_and_its_data(go: Go) -> None:
    async def work() -> ToolOutput:
        return ToolOutput("no", is_error=True, data=LOOP)

    lab = Lab(work)
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [("no", True)]
    assert lab.seen[0].data is LOOP


@pytest.mark.parametrize("value", ["lone \ud800", ToolOutput("lone \ud800")])
async def test_t6_lone_surrogates_are_replaced_wherever_the_text_comes_from(go: Go, value: Any) -> None:
    """A request that holds one cannot be encoded: no server would ever see it (T7)."""

    async def work() -> str:
        return "fine"

    lab = Lab(work, hooks=[{"after_tool": lambda result, ctx: value}])
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [("lone \ufffd", False)]


# Generators


def yielding(*items: Any, is_async: bool, log: list[int] | None = None) -> Callable[..., Any]:
    threads = [] if log is None else log

    def sync() -> Iterator[Any]:
        for item in items:
            threads.append(threading.get_ident())
            yield item

    async def on_loop() -> AsyncIterator[Any]:
        for item in items:
            threads.append(threading.get_ident())
            yield item

    return on_loop if is_async else sync


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("items", "text"),
    [
        (("a", "b", ""), "ab"),
        ((Colour.RED, "!"), "red!"),
        ((1, None, {"a": 2}), '[1,null,{"a":2}]'),
        (("a", 1), '["a",1]'),
        ((BLOB,), f'["{CODED}"]'),
        (("\ud83d", "\ude00"), "😀"),
    ],
)
async def test_t6_generators_are_consumed_on_the_loop_strings_joined_other_items_a_list(
    go: Go, items: tuple[Any, ...], text: str, is_async: bool
) -> None:
    threads: list[int] = []
    lab = Lab(yielding(*items, is_async=is_async, log=threads))
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [(text, False)]
    assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize("make", [iter, partial(map, str), lambda items: (item for item in items)])
async def test_t6_an_iterator_that_a_tool_returns_is_consumed_like_a_generator(
    go: Go, make: Callable[[list[str]], Iterator[str]]
) -> None:
    lab = Lab(lambda: make(["a", "b"]))
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [("ab", False)]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_t6_a_coroutine_that_gives_a_generator_is_awaited_and_consumed(go: Go, is_async: bool) -> None:
    async def work() -> Any:
        return yielding("a", "b", is_async=is_async)()

    lab = Lab(work)
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [("ab", False)]


# Properties

JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSON_LIKE)
def test_t6_any_json_like_value_round_trips(value: Any) -> None:
    content = ToolOutput(value).content
    assert type(content) is str
    assert content == value if isinstance(value, str) else json.loads(content, parse_constant=pytest.fail) == value


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=JSON_LIKE, is_async=st.booleans())
def test_t6_any_json_like_value_round_trips_through_a_run(backend: str, value: Any, is_async: bool) -> None:
    async def on_loop() -> Any:
        return value

    lab = Lab(on_loop if is_async else lambda: value)
    anyio.run(partial(lab.app.run, lab.agent, "hi"), backend=backend)
    ((text, is_error),) = lab.results
    assert not is_error
    assert text == value if isinstance(value, str) else json.loads(text) == value


LONE = re.compile("[\ud800-\udfff]")
ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from("\ud800\udbff\udc00\udfff\ufeff😀"))


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_t6_only_lone_surrogates_are_replaced_each_by_one_character(text: str) -> None:
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # pairs become characters
    assert json.loads(ToolOutput(cast("str", [text])).content) == [LONE.sub("\ufffd", joined)]


# Cutting


def cutting(limit: int, text: Any, is_error: bool = False) -> Any:
    async def work() -> Any:
        if is_error:
            raise ToolError(text)
        return text

    return tool(name="work", max_result_chars=limit)(work)


@pytest.mark.parametrize("is_error", [False, True])
async def test_t6_the_models_copy_is_cut_last_between_characters_and_says_how_much(go: Go, is_error: bool) -> None:
    """B54: hooks and layers see all of it, the mark stays."""
    whole = "añ€😀" * 1_250_000
    seen: list[str] = []
    lab = Lab(cutting(10_000, whole, is_error), hooks=[{"after_tool": lambda result, ctx: seen.append(result.output)}])
    await go(lab.app, lab.agent, "hi")
    ((text, marked),) = lab.results
    assert marked is is_error
    assert len(text) <= 10_000
    kept = next(n for n in range(len(text)) if text[n] != whole[n])
    (count,) = re.findall(r"\d+", text[kept:])
    assert kept + int(count) == len(whole)
    assert "cut" in text[kept:]
    assert seen[0] == lab.seen[0].content == whole


@settings(max_examples=200, deadline=None)
@given(size=st.integers(0, 300), limit=st.integers(40, 300))
def test_t6_what_was_kept_and_what_was_cut_add_up(size: int, limit: int) -> None:
    whole = "é" * size
    lab = Lab(cutting(limit, whole))
    anyio.run(partial(lab.app.run, lab.agent, "hi"))
    ((text, _),) = lab.results
    assert len(text) <= limit
    if size <= limit:
        assert text == whole
    else:
        kept = len(text) - len(text.lstrip("é"))
        assert kept + int(re.findall(r"\d+", text)[0]) == size
        assert kept > 0


async def test_t6_without_a_limit_text_of_any_size_goes_through_unchanged(go: Go) -> None:
    """B54."""
    whole = "añ€😀" * 1_250_000

    async def work() -> str:
        return whole

    lab = Lab(work)
    await go(lab.app, lab.agent, "hi")
    assert lab.results == [(whole, False)]


@pytest.mark.parametrize(("value", "text"), [("short", "short"), ("y" * 60, None)])
async def test_t6_what_after_tool_makes_of_a_result_is_cut_and_not_what_it_saw(
    go: Go, value: str, text: str | None
) -> None:
    lab = Lab(cutting(50, "x" * 1000), hooks=[{"after_tool": lambda result, ctx: value}])
    await go(lab.app, lab.agent, "hi")
    ((sent, _),) = lab.results
    assert sent == text if text is not None else sent.startswith("y") and len(sent) <= 50 and "cut" in sent


async def test_t6_each_tool_is_cut_by_its_own_limit(go: Go) -> None:
    async def other() -> str:
        return "z" * 1000

    lab = Lab(cutting(50, "x" * 1000), tool(name="work1")(other))
    await go(lab.app, lab.agent, "hi")
    first, second = (len(text) for text, _ in lab.results)
    assert (first <= 50, second) == (True, 1000)


async def test_section_1_a_str_from_a_layer_is_a_tool_output(go: Go) -> None:
    async def short(call: ToolCall, next: Next[ToolCall, ToolOutput]) -> str:
        return "from a layer"

    lab = Lab(yielding("a", is_async=True))
    await go(lab.app.use(tool=short), lab.agent, "hi")
    assert lab.results == [("from a layer", False)]
    assert lab.seen == [ToolOutput("from a layer")]
    assert ToolOutput("a", is_error=True).replace(content="b") == ToolOutput("b", is_error=True)
