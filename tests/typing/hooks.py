"""Hooks: which signatures an editor takes for a hook, and which it refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, assert_type

from middlechain import (
    Agent,
    AgentHooks,
    Context,
    Input,
    Result,
    Text,
    ToolCall,
    ToolOutput,
    ToolResult,
    User,
    observes,
)
from middlechain.messages import Part


class Sync(AgentHooks):
    def before_run(self, input: Input, ctx: Context[Any]) -> Input:
        assert_type(input, str | Sequence[Part] | User)
        return input

    def before_prompt(self, prompt: str, ctx: Context[Any]) -> str:
        return f"{prompt}\nIt is turn {ctx.turn}."

    def before_tool(self, call: ToolCall, ctx: Context[Any]) -> ToolCall:
        assert_type(call.args, dict[str, Any])
        return call.replace(args={**call.args, "unit": "m"})

    def after_tool(self, result: ToolResult, ctx: Context[Any]) -> ToolOutput:
        assert_type(result.name, str)
        assert_type(result.args, dict[str, Any])
        assert_type(result.output, str)
        assert_type(result.is_error, bool)
        return ToolOutput(result.output.upper(), result.is_error)

    def after_response(self, response: str, ctx: Context[Any]) -> str:
        return response.upper()

    def after_run(self, result: Result, ctx: Context[Any]) -> Result:
        assert_type(result.text, str)
        return result.replace(text=result.text.upper())

    def on_error(self, error: Exception, ctx: Context[Any]) -> str:
        return f"Sorry: {error}"


class Async(AgentHooks):
    async def before_run(self, input: Input, ctx: Context[Any]) -> str:
        return "changed"

    async def before_prompt(self, prompt: str, ctx: Context[Any]) -> str | None:
        return None

    async def before_tool(self, call: ToolCall, ctx: Context[Any]) -> ToolCall | None:
        return None

    async def after_tool(self, result: ToolResult, ctx: Context[Any]) -> str:
        return "changed"

    async def after_response(self, response: str, ctx: Context[Any]) -> str:
        return (await ctx.chat(response)).text

    async def after_run(self, result: Result, ctx: Context[Any]) -> str:
        return "changed"

    async def on_error(self, error: Exception, ctx: Context[Any]) -> str | None:
        return None


class Keeping(Agent):
    """Hooks that only look, as methods of an agent."""

    def before_run(self, input: Input, ctx: Context[Any]) -> None:
        ctx.asked = input

    async def before_tool(self, call: ToolCall, ctx: Context[Any]) -> None:
        await ctx.emit("about to call", call.name)

    @observes
    async def after_response(self, response: str, ctx: Context[Any]) -> None:
        print(response)

    @observes
    def after_run(self, result: Result, ctx: Context[Any]) -> None:
        print(result.usage)


class Desk:
    open = True


class Stateful(Agent):
    """Each hook may say what the state is."""

    def before_run(self, input: Input, ctx: Context[Desk]) -> str | None:
        assert_type(ctx.state, Desk)
        return None if ctx.state.open else "We are closed."

    def before_prompt(self, prompt: str, ctx: Context) -> str:
        return prompt


class OtherNames(AgentHooks):
    """Hooks are called with what they get, not by its names."""

    def before_tool(self, tool_call: ToolCall, context: Context[Any]) -> None:
        print(tool_call.name)

    def after_response(self, text: str, _: Context[Any]) -> str:
        return text.upper()


class Other(AgentHooks):
    """The other values that a hook may return."""

    def before_run(self, input: Input, ctx: Context[Any]) -> list[Text]:
        return [Text("changed")]

    def after_tool(self, result: ToolResult, ctx: Context[Any]) -> Awaitable[ToolOutput]:
        return ctx.call_tool("translate", {"text": result.output})

    def after_run(self, result: Result, ctx: Context[Any]) -> Awaitable[Result]:
        return ctx.run("other", result.text)


Agent(hooks=[Sync(), Async(), {"after_response": Sync().after_response}])
assert_type(Keeping(hooks=[Sync()]), Keeping)


class RefusedReturns(AgentHooks):
    def before_run(self, input: Input, ctx: Context[Any]) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return 7

    def before_prompt(self, prompt: str, ctx: Context[Any]) -> list[str]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return [prompt]

    def before_tool(self, call: ToolCall, ctx: Context[Any]) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return "add"

    def after_tool(self, result: ToolResult, ctx: Context[Any]) -> ToolResult:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return result

    async def after_response(self, response: str, ctx: Context[Any]) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return 7

    async def after_run(self, result: Result, ctx: Context[Any]) -> ToolOutput:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return ToolOutput(result.text)

    def on_error(self, error: Exception, ctx: Context[Any]) -> Exception:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return error


class RefusedSignatures(Agent):
    def before_run(self, input: str, ctx: Context[Any]) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def before_prompt(self, prompt: str) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def before_tool(self, call: ToolResult, ctx: Context[Any]) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def after_tool(self, result: ToolResult, ctx: Context[Any], call: ToolCall) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def after_response(self, response: Result, ctx: Context[Any]) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def after_run(self) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]

    def on_error(self, error: ValueError, ctx: Context[Any]) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]


class RefusedSuper(AgentHooks):
    def after_tool(self, result: ToolResult, ctx: Context[Any]) -> None:
        result.output = "changed"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        result.replace(output="changed")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        super().before_answer(result, ctx)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
