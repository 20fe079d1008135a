"""Agents as tools, and the tools that hand a conversation over: what a model sees of other agents."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from middlechain.errors import ConfigurationError
from middlechain.records import this_step
from middlechain.tool_calls import WAITS, Waiting
from middlechain.tools import Tool, ToolOutput, tool

if TYPE_CHECKING:
    from middlechain.agent import Agent
    from middlechain.pauses import Decisions, Pause

__all__ = ["AgentAsTool", "Transfer", "agent_tool", "tool_name", "transfer_tool"]


class AgentAsTool:
    """The function of a tool that asks an agent."""

    def __init__(self, agent: Agent | type[Agent]) -> None:
        self.agent = agent

    async def __call__(self, input: str) -> ToolOutput:
        """Ask another agent.

        Args:
            input: what it is asked; it knows nothing of this conversation.
        """
        return await self._ask(input)

    def after(self, pause: Pause, decisions: Decisions) -> Callable[[str], Awaitable[ToolOutput]]:
        """The function that goes on where the agent stopped."""

        async def go_on(input: str) -> ToolOutput:
            return await self._ask(input, (pause, decisions))

        return go_on

    async def _ask(self, input: str, resumed: tuple[Pause, Decisions] | None = None) -> ToolOutput:
        step = this_step()
        result = await step.run.engine.delegate(step, self.agent, input, "tool", resumed)
        if result.pause is not None:
            return ToolOutput(WAITS, is_error=True, data=Waiting(None, result.pause))
        return ToolOutput(result.text, data=result)


class Transfer:
    """The function of a tool that hands the conversation over to an agent."""

    def __init__(self, target: Agent | type[Agent] | str, name: str) -> None:
        self.target = target
        self.name = name

    async def __call__(self, reason: str = "") -> str:
        """Hand the conversation over.

        Args:
            reason: why, in a few words.
        """
        return f"The conversation goes on with {self.name}."


def agent_tool(agent: Agent | type[Agent], agent_name: str, name: str | None, description: str | None) -> Tool:
    """A tool that asks the agent.

    Raises:
        ConfigurationError: for a name that no server takes.
    """
    name = tool_name(agent_name) if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"as_tool() of {agent_name}: {name!r:.80} is no name of a tool; "
            "give 1 to 64 letters, digits, underscores and hyphens"
        )
    return tool(name=name, description=description or agent.description or f"Ask {agent_name}.")(AgentAsTool(agent))


def transfer_tool(target: Agent | type[Agent] | str, name: str, description: str) -> Tool:
    """The tool that hands over to the agent of that name."""
    told = f"Hand the conversation over to {name}, who answers from then on. {description}".rstrip()
    return tool(name=tool_name(f"transfer_to_{name}"), description=told)(Transfer(target, name))


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def tool_name(name: str) -> str:
    """The name as a tool may have it: servers take letters, digits, underscores and hyphens, 64 of them."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:64]
