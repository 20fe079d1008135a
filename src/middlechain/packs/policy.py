"""A pack's tool policy as layers: what is blocked, how many calls there may be, and whether tools must be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from middlechain.chain import Next, observes
from middlechain.chat import CUT_OFF, ChatCall, ChatReply, Settings
from middlechain.context import Context
from middlechain.messages import Assistant
from middlechain.packs.format import ToolPolicyPart, read
from middlechain.packs.issues import Place, nearest
from middlechain.records import step_of
from middlechain.tool_calls import ToolCall
from middlechain.tools import ToolOutput

__all__ = ["ToolPolicy", "read_policy"]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Layers that hold an agent to the tool policy of its pack.

    Where it belongs: innermost among the agent's layers, so that a layer which adds or renames tools does not slip past
    it. State: none; calls are counted in the messages of the step. Deltas: passed on untouched.

    Args:
        blocked: names of tools that are not offered, and do not run.
        most: calls of tools in one step, that is, in answer to one message; None for no limit.
        choice: `"auto"`, `"none"`: no tool runs, `"required"`: the model must ask for one before it answers.
        rounds: turns of one step; None for no limit. This is for `Limits`, no layer counts it.
    """

    blocked: frozenset[str] = frozenset()
    most: int | None = None
    choice: str | None = None
    rounds: int | None = None

    @property
    def has_layers(self) -> bool:
        """Whether there is anything for the layers to do."""
        return bool(self.blocked) or self.most is not None or self.choice in {"none", "required"}

    @observes
    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
        """Offer no blocked tool, and leave the model its choice once it has used a tool."""
        tools = tuple(tool for tool in call.tools if tool.name not in self.blocked)
        await next(call.replace(tools=tools, settings=self._settings(call.settings, _asked(call.ctx))))

    async def tool(self, call: ToolCall, next: Next[ToolCall, ToolOutput]) -> ToolOutput | None:
        """Refuse what is blocked, or one call too many."""
        refusal = self._refusal(call)
        if refusal is not None:
            return ToolOutput(f"The tool {call.name!r} did not run: {refusal}", is_error=True)
        await next()
        return None

    def _settings(self, settings: Settings, asked: int) -> Settings:
        if self.most is not None and asked >= self.most:
            return replace(settings, tool_choice="none")
        if self.choice == "required" and settings.tool_choice == "required" and asked:
            return replace(settings, tool_choice="auto")
        return settings

    def _refusal(self, call: ToolCall) -> str | None:
        if call.name in self.blocked:
            return "it is blocked here. Answer without it."
        if self.choice == "none":
            return "no tools may be used here. Answer without them."
        if self.most is not None and _number(call) > self.most:
            return f"no more than {self.most} calls may be made for one answer. Answer with what there is."
        return None


def _asked(ctx: Context[Any]) -> int:
    """How many calls the model has asked for in the turns of this step that are over."""
    return sum(
        len(message.tool_calls)
        for message in step_of(ctx).exchange
        if isinstance(message, Assistant) and message.finish_reason not in CUT_OFF
    )


def _number(call: ToolCall) -> int:
    """Which call of the step this is, from 1, in the order in which the model asked; 0 for one that code makes."""
    reply = step_of(call.ctx).reply
    ids = [] if reply is None else [use.id for use in reply.tool_calls]
    return _asked(call.ctx) + ids.index(call.id) + 1 if call.id in ids else 0


def read_policy(data: object, tools: Mapping[str, object], place: Place) -> ToolPolicy:
    """The tool policy of a prompt. What is wrong with it is noted.

    Args:
        data: as the pack has it; None for none.
        tools: of the pack, by name.
        place: of the policy.
    """
    part = None if data is None else read(ToolPolicyPart, data, place)
    if part is None:
        return ToolPolicy()
    for index, name in enumerate(part.blocklist):
        if name not in tools:
            place.at("blocklist", index).note(f"the pack defines no tool {name!r}; {nearest(name, tools)}")
    return ToolPolicy(frozenset(part.blocklist), part.max_tool_calls_per_turn, part.tool_choice, part.max_rounds)
