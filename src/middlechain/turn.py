"""A turn: one model call, and the tools it asks for. Steps repeat turns until there is an answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar, cast

import anyio

from middlechain.admission import Admission
from middlechain.bus import pump
from middlechain.chain import Handler, Scope, is_marked, name_of, observes, settle
from middlechain.chat import CHAT, CUT_OFF, ChatCall, ChatReply, Model, Offer, Send, Settings, ask_model, discard
from middlechain.errors import ToolError, WrongReturn
from middlechain.events import ModelFinished, ModelStarted, ToolFinished, ToolStarted
from middlechain.execution import run_tool
from middlechain.guards import Deny, Guard, StepGuards
from middlechain.holds import holds_back
from middlechain.judging import Block, judge_reply, ledger_of, refuse
from middlechain.messages import Assistant, Message, System, ToolMessage, ToolUse
from middlechain.nested import Transfer
from middlechain.records import Step
from middlechain.registry import model_named
from middlechain.results import last_answer
from middlechain.tool_calls import (
    TOOL,
    WAITS,
    Decided,
    Ticket,
    ToolCall,
    ToolResult,
    Waiting,
    parse_arguments,
    read_call,
    reread,
)
from middlechain.tools import Tool, ToolOutput
from middlechain.values import cut, fresh
from middlechain.variables import RunIn
from middlechain.watch import Watch

__all__ = [
    "Pending",
    "ask",
    "call_tool",
    "chain_of",
    "canned_reply",
    "check_mark",
    "converse",
    "judge_with",
    "pending_call",
    "run_all",
    "run_tools",
    "settle_turn",
    "wrong_return",
]

Call = TypeVar("Call")
Answer = TypeVar("Answer")


def chain_of(step: Step, scope: Scope[Call, Answer], endpoint: Handler[Call, Answer]) -> Handler[Call, Answer]:
    """The layers of one scope around that agent's calls, folded at the first use."""
    chain: Handler[Call, Answer] | None = step.chains.get(scope.name)
    if chain is None:
        chain = step.chains[scope.name] = scope.fold(step.run.stack.applying(scope.name, step.plan), endpoint)
    return chain


def check_mark(hook: object, name: str, value: object, given: object) -> None:
    """Refuse another value than the one it was given from a hook that is marked `@observes`.

    Raises:
        WrongReturn: then.
    """
    if value is not given and is_marked(hook, observes):
        raise WrongReturn(
            f"the hook {name_of(hook)!r} is marked @observes and returned a value of its own from {name}; "
            "return None or the very object that it was given, or take off the mark"
        )


def wrong_return(hook: object, name: str, value: object, expected: str) -> WrongReturn:
    """The error for a hook that returned a value of the wrong type."""
    return WrongReturn(
        f"the hook {name_of(hook)!r} returned a value of type {type(value).__name__} ({value!r:.60}) from {name}; "
        f"return {expected}, or None to keep what there is"
    )


async def ask(step: Step) -> tuple[ChatReply | Block, Offer]:
    """The reply of the next turn (or a guard's block of it), and the tools that it could choose from."""
    plan, turn = step.plan, step.next_turn()
    prompt = plan.instructions if isinstance(plan.instructions, str) else await plan.prompt(step.ctx)
    for hook in plan.hooks["before_prompt"]:
        value = await settle(hook(prompt, step.ctx))
        if value is not None:
            if not isinstance(value, str):
                raise wrong_return(hook, "before_prompt", value, "a str")
            prompt = value
    messages = (*step.sendable, *(_so_far(step) if step.repairs else step.exchange))
    if prompt:
        messages = (System(prompt), *messages)
    send = discard if step.edge is None else step.edge.sender(turn)
    if step.guards is not None and step.guards.output:
        return await _ask_guarded(step, messages, send)
    reply, offer = await converse(step, messages, step.tools, plan.model, send, plan.asked)
    if step.edge is not None:
        reply = await step.edge.replied(turn, reply)
    if step.listening:
        await step.emit(ModelFinished, reply)
    return reply, offer


def _so_far(step: Step) -> Sequence[Message]:
    """What was said in the exchange, with the answers that went back where they were said."""
    said = list(step.exchange)
    for place, *repair in reversed(step.repairs):
        said[place:place] = repair
    return said


async def _ask_guarded(step: Step, messages: tuple[Message, ...], send: Send) -> tuple[ChatReply | Block, Offer]:
    """The same where guards judge the reply: what streams is watched, and judged before anything else is done."""
    plan, guards = step.plan, cast("StepGuards", step.guards)
    if send is discard:
        reply, offer = await converse(step, messages, step.tools, plan.model, send, plan.asked)
    else:
        watch = Watch(guards.output, step.ctx, send, closes=_closes(step, guards.output[0]))
        asked = None
        with watch.scope:
            asked = await converse(step, messages, step.tools, plan.model, watch.send, plan.asked)
        reply, offer = (watch.reply, Offer(step.tools)) if asked is None or watch.closed else asked
    judged = await judge_with(step, guards.reply, reply)
    if isinstance(judged, Block):
        return judged, offer
    step.passed |= {judged.text}
    if step.edge is not None and (judged.tool_calls or not guards.final):
        judged = await step.edge.replied(step.turn, judged)
        step.passed |= {judged.text}  # with what was sent before it and cannot be taken back
    if step.listening:
        withheld = guards.final and not judged.tool_calls  # the answer, which is yet to be judged
        await step.emit(ModelFinished, judged.replace(text="") if withheld else judged)
    return judged, offer


def _closes(step: Step, first: Guard) -> bool:
    """Whether a certain block of the first guard may close the stream: not if a layer could still change the reply."""
    layers = step.run.stack.applying("chat", step.plan)
    blocks = first.mode == "enforce" and first.when == "reply" and first.outcome != "rewrite"
    blocks = blocks and first.on_failure == "deny"  # one that may fail may yet let the reply pass
    return blocks and not any(holds_back(layer) for layer, _ in layers)


async def judge_with(step: Step, guards: Sequence[Guard], reply: ChatReply) -> ChatReply | Block:
    """Judge a reply, and say that the model has finished if it is blocked.

    Raises:
        GuardrailDenied: for a `Deny`.
    """
    judged = await judge_reply(step, guards, reply)
    if isinstance(judged, Block):
        denied = isinstance(judged.outcome, Deny)
        await step.emit(ModelFinished, None if denied else canned_reply(step, judged))
        if denied:
            raise refuse(step, judged)
    return judged


def canned_reply(step: Step, block: Block) -> ChatReply:
    """The reply in place of one that was blocked."""
    return ChatReply(block.canned, finish_reason="safety", validations=ledger_of(step).validations)


async def converse(
    step: Step,
    messages: tuple[Message, ...],
    tools: tuple[Tool, ...],
    model: Model | str | None,
    send: Send,
    settings: Settings,
) -> tuple[ChatReply, Offer]:
    """One call through the chat layers. What it sends is the caller's to settle, and so is the last event."""
    plan, run = step.plan, step.run
    model = run.app.model if model is None else model
    if isinstance(model, str):
        model = model_named(model, run.models)
    offer = Offer(tools)
    call = ChatCall(
        messages,
        tools,
        settings,
        model,
        send is not discard,
        send,
        ctx=step.ctx,
        agent=plan.agent,
        offer=offer,
    )
    if step.listening:
        await step.emit(ModelStarted)
    try:
        reply = await chain_of(step, CHAT, ask_model)(call)
    except Exception:  # only to say that the call has ended; it goes on unchanged
        await step.emit(ModelFinished, None)
        raise
    return reply, offer


class Pending:
    """One tool call of a reply: the model's, as it is dispatched, and what came of it."""

    __slots__ = ("call", "output", "ticket", "use")

    def __init__(self, use: ToolUse, call: ToolCall, ticket: Ticket) -> None:
        self.use = use  # as it can be sent back
        self.call = call
        self.ticket = ticket
        self.output: ToolOutput | None = None

    @property
    def waits(self) -> bool:
        """Whether there is no output yet, since something waits for approval."""
        return self.output is not None and type(self.output.data) is Waiting

    def message(self) -> ToolMessage:
        """The result as history gets it, also where there is none."""
        if self.output is not None:
            return ToolMessage(self.output.content, self.use.id, self.use.name, self.output.is_error)
        if self.ticket.ran is None:
            text = "The tool did not run: the step ended before."
        elif self.ticket.ended:
            text = "The call is not lost: it ran, its result was withheld."
        else:
            text = "The tool was started and did not finish; what it did by then is not known."
        return ToolMessage(text, self.use.id, self.use.name, is_error=True)


async def run_tools(step: Step, reply: ChatReply, offer: Offer) -> None:
    """Run the tools that a reply asks for, at the same time, and record the turn with their results in call order.

    If something ends the step meanwhile, the turn is recorded if any tool ran.
    """
    if reply.finish_reason in CUT_OFF:
        uses = [_sendable(use, parse_arguments(use.arguments)[1]) for use in reply.tool_calls]
        _record(step, reply, uses, [_again(use, reply.finish_reason) for use in uses])
        return
    by_name = step.by_name if offer.tools is step.tools else {tool.name: tool for tool in offer.tools}
    admission = Admission(step)
    pending = [pending_call(step, use, by_name, admission) for use in reply.tool_calls]
    try:
        if len(pending) == 1 and not step.plan.handoffs:
            await _isolated(step, pending[0])()
        else:
            await run_all(step, pending, admission)
    except BaseException:
        if all(one.output is not None for one in pending) or any(one.ticket.ran is not None for one in pending):
            _record(step, reply, [one.use for one in pending], [one.message() for one in pending])
        raise
    _record(step, reply, [one.use for one in pending], [one.message() for one in pending])
    if step.plan.handoffs or step.loop is not None:
        settle_turn(step, pending)


async def run_all(step: Step, pending: Sequence[Pending], admission: Admission) -> None:
    """Run the calls of one reply at the same time."""
    if step.plan.handoffs and admission.transfer is None:
        admission.transfer = next((one.ticket for one in pending if _is_transfer(one.call.tool)), None)
    if len(pending) == 1:
        await _isolated(step, pending[0])()
    else:
        for one in pending:
            one.ticket.alone = chain_of(step, TOOL, run_tool) is run_tool
        await pump(step.run.bus, *(_isolated(step, one) for one in pending))


def _is_transfer(tool: Tool | None) -> bool:
    return tool is not None and type(tool.function) is Transfer


def settle_turn(step: Step, pending: Sequence[Pending]) -> None:
    """Note what follows from a turn: whether all has failed, and who gets the conversation."""
    if step.loop is not None and not step.waiting:
        place = cast("int", last_answer(step.exchange))
        step.loop.note(all(message.is_error for message in step.exchange[place + 1 :] if type(message) is ToolMessage))
    if step.plan.handoffs:
        for one in pending:
            if _is_transfer(one.ticket.ran) and one.output is not None and not one.output.is_error:
                step.transfer = cast("Transfer", cast("Tool", one.ticket.ran).function).target


def _again(use: ToolUse, reason: str | None) -> ToolMessage:
    text = f"The tool did not run: the reply that asked for it was cut off ({reason}). Ask for it again."
    return ToolMessage(text, use.id, use.name, is_error=True)


def _record(step: Step, reply: ChatReply, uses: Sequence[ToolUse], results: Sequence[ToolMessage]) -> None:
    step.reply = None
    step.exchange.append(Assistant(reply.text, uses, reply.reasoning, reply.finish_reason))
    step.exchange.extend(results)


def _sendable(use: ToolUse, problem: str | None) -> ToolUse:
    """The call as any server takes it back: its arguments are an object."""
    return use if problem is None and use.arguments.strip() else ToolUse(use.name, "{}", use.id)


def pending_call(
    step: Step, use: ToolUse, by_name: Mapping[str, Tool], admission: Admission, decided: Decided | None = None
) -> Pending:
    """A call of a reply, looked up and checked."""
    ticket = Ticket(by_name, admission, copy_context())
    ticket.decided = decided
    args, problem = parse_arguments(use.arguments)
    call = read_call(use.name, args, problem, use.id, ticket, step.ctx, step.plan.agent)
    return Pending(_sendable(use, problem), call, ticket)


def _isolated(step: Step, pending: Pending) -> Callable[[], Coroutine[Any, Any, None]]:
    async def child() -> None:
        pending.output = await RunIn(pending.ticket.variables, _dispatch(step, pending.call))

    return child


async def _dispatch(step: Step, call: ToolCall) -> ToolOutput:
    """One tool call through hooks and layers."""
    ticket = cast("Ticket", call.ticket)
    if step.listening:
        await step.emit(ToolStarted, call)
    try:
        if step.plan.hooks["before_tool"]:
            call = await _before_tool(step, call)
        output = await chain_of(step, TOOL, run_tool)(call)
        if type(output.data) is Waiting and ticket.by_code:
            text = f"The tool {call.name!r} did not finish: a call in it needs approval, and code cannot wait for one."
            output = ToolOutput(text, is_error=True)
        elif type(output.data) is Waiting:
            output = replace(output, content=WAITS, is_error=True)  # whatever a layer said: it is not the result
            step.waiting = {**step.waiting, call.id: output.data}
        elif step.plan.hooks["after_tool"]:
            output = await _after_tool(step, call, output)
    except Exception as error:  # only to say that the call has ended; it goes on unchanged
        if isinstance(error, ToolError):
            error.add_note(
                "it left a hook or a layer; to refuse a call there, return ToolOutput(reason, is_error=True)"
            )
        with anyio.CancelScope(shield=True):  # a sibling that fails meanwhile must not take its place
            await step.emit(ToolFinished, call, None)
        raise
    finally:
        ticket.admission.settle(ticket)
    tool = ticket.ran or call.tool
    if tool is not None and tool.max_result_chars is not None and type(output.data) is not Waiting:
        output = replace(output, content=cut(output.content, tool.max_result_chars))
    if step.listening:
        await step.emit(ToolFinished, call, output)
    return output


async def _before_tool(step: Step, call: ToolCall) -> ToolCall:
    for hook in step.plan.hooks["before_tool"]:
        value = await settle(hook(call, step.ctx))
        if value is not None:
            if not isinstance(value, ToolCall):
                raise wrong_return(hook, "before_tool", value, "a ToolCall, such as call.replace(args=...)")
            call = value if value.ticket is call.ticket else reread(call, value)
    return call


async def _after_tool(step: Step, call: ToolCall, output: ToolOutput) -> ToolOutput:
    for hook in step.plan.hooks["after_tool"]:
        result = ToolResult(call.name, call.args, output.content, output.is_error, call.id)
        value = await settle(hook(result, step.ctx))
        if value is not None:
            if isinstance(value, ToolOutput):
                output = value
            elif isinstance(value, str):
                output = replace(output, content=value)
            else:
                raise wrong_return(hook, "after_tool", value, "a str or a ToolOutput")
    return output


async def call_tool(step: Step, name: str, args: Mapping[str, Any]) -> ToolOutput:
    """A tool call that code makes with `ctx.call_tool`: the same way in, and no place in history."""
    ticket = Ticket(step.plan.by_name, Admission(step), copy_context(), by_code=True)
    step.run.calls_by_code += 1
    id = f"ctx_{step.run.calls_by_code}"
    call = read_call(name, fresh(dict(args)), None, id, ticket, step.ctx, step.plan.agent)
    return await RunIn(ticket.variables, _dispatch(step, call))
