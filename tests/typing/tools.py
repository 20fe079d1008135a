"""Tools: what `tool` makes of a function, and which options it has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, assert_type

from pydantic import BaseModel, Field

from middlechain import Agent, Context, FatalToolError, Tool, ToolError, ToolOutput, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool()
async def look_up(word: Annotated[str, Field(description="a word")], ctx: Context[Any]) -> str:
    """Look a word up.

    Args:
        word: which.
    """
    await ctx.emit("looked up", word)
    return word


@tool(name="weather", description="Tells the weather.", expose_errors=True, max_result_chars=200)
def weather_of(city: str, unit: Literal["C", "F"] = "C") -> dict[str, float]:
    if not city:
        raise ToolError("Name a city.")
    if city == "Atlantis":
        raise FatalToolError("There is no such city.")
    return {unit: 20.0}


class Order(BaseModel):
    number: int


@tool
async def order(order: Order) -> Order:
    """Order something."""
    return order


@tool
def lines(path: str) -> Iterator[str]:
    """Read a file."""
    yield path


@tool
async def live(path: str) -> AsyncIterator[str]:
    """Follow a file."""
    yield path


@tool
def short(text: str) -> ToolOutput:
    """Shorten a text."""
    return ToolOutput(text[:10], is_error=not text, data={"length": len(text)})


class Shop:
    def price(self, article: str) -> float:
        """The price of an article."""
        return 1.0


assert_type(add(1, 2), int)
assert_type(weather_of("Rome", unit="C"), dict[str, float])
made: list[Tool] = [add, look_up, weather_of, order, lines, live, short]
made += [tool(Shop().price), tool(name="price")(Shop().price), tool(len), tool(add)]
assert_type(add.name, str)
assert_type(add.description, str)
assert_type(add.schema, Mapping[str, Any])
assert_type(add.expose_errors, bool)
assert_type(add.max_result_chars, int | None)
Agent(tools=[add, tool(name="price_of")(Shop().price), Shop().price, len])

of_any_kind: list[Tool | Callable[..., Any]] = [add, len]
Agent(tools=of_any_kind)
Agent(tools=(each for each in of_any_kind))


def output(output: ToolOutput) -> None:
    assert_type(output.content, str)
    assert_type(output.is_error, bool)
    assert_type(output.error, BaseException | None)
    assert_type(output.replace(content="changed"), ToolOutput)
    assert_type(output.replace(content={"a": 1}, is_error=True), ToolOutput)
    assert_type(ToolOutput({"a": 1}).content, str)


async def called(ctx: Context[Any]) -> None:
    assert_type(await look_up("tool", ctx), str)


def refused() -> None:
    tool(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool("add")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(nmae="add")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tool(name=7)(len)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(max_result_chars="200")(len)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(approve="always")(len)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool(len, name="length")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tool(name="length")("len")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.name = "sum"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ToolOutput("7").replace(contnet="8")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.schema["type"] = "array"  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    add.run(1, 2)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Tool("add")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ToolOutput()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ToolOutput("7", is_eror=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ToolOutput("7", is_error="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ToolOutput("7").content = "8"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    ToolOutput("7").text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
