"""Delegation: what `ctx` can ask for, through the layers of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from middlechain.answering import begin_turn
from middlechain.chat import ChatReply, Model, discard
from middlechain.events import ModelFinished
from middlechain.judging import Block
from middlechain.messages import Input, Message, history_of, sendable, user_message
from middlechain.pauses import Decisions, Pause, first_input
from middlechain.records import Step
from middlechain.results import Result
from middlechain.steps import run_through
from middlechain.targets import plan_for, step_for, step_to_resume
from middlechain.tools import Tool, ToolOutput, tools_of
from middlechain.turn import call_tool, canned_reply, converse, judge_with

__all__ = ["Delegation"]


class Delegation:
    """What `ctx` can ask for: a model call, a tool call, and a nested step, through the layers of the run."""

    async def chat(
        self, step: Step, messages: Any, model: Model | str | None, tools: Sequence[Tool], for_guard: bool = False
    ) -> ChatReply:
        """One model call that is not part of the step's own turns, unless code has them all: then it is one of them."""
        if step.plan.own_run is not None and not for_guard:
            await begin_turn(step)
            step.next_turn()
        if isinstance(messages, Sequence) and messages and isinstance(messages[0], Message | Mapping):
            sent = sendable(history_of(messages))
        else:
            sent = (user_message(messages),)
        own = step.plan.model if model is None else model
        reply, _ = await converse(step, sent, tools_of(tools, "ctx.chat()"), own, discard, step.plan.settings)
        if step.guards is not None and step.guards.output and not for_guard:
            judged = await judge_with(step, step.guards.reply, reply)
            if isinstance(judged, Block):
                step.passed |= {judged.canned}
                return canned_reply(step, judged)
            reply = judged
            step.passed |= {reply.text}
        if step.listening:
            await step.emit(ModelFinished, reply)
        return reply

    async def call_tool(self, step: Step, name: str, args: Mapping[str, Any]) -> ToolOutput:
        """One tool call that is not part of the step's own turns."""
        return await call_tool(step, name, args)

    async def delegate(
        self, caller: Step, target: Any, input: Input, via: str = "run", resumed: tuple[Pause, Decisions] | None = None
    ) -> Result:
        """A step, or a flow, nested in this one; or one that goes on where it stopped."""
        run = caller.run
        if resumed is None:
            step = step_for(run, plan_for(run, target), caller=caller)
            if via == "run":
                step.by_code = True
            return await run_through(step, input, via)
        pause, decisions = resumed
        step = step_to_resume(run, target, pause, decisions, caller=caller)
        return await run_through(step, first_input(pause), via)
