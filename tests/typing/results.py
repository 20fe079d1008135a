"""Results and replies: what is read from them, and what may be changed."""

from __future__ import annotations

from typing import Any, assert_type

from middlechain import Assistant, ChatReply, Message, Result, ToolUse, Usage


def read(result: Result) -> None:
    assert_type(result, Result[Any])
    assert_type(result.text, str)
    assert_type(result.output, Any)
    assert_type(result.message, Assistant)
    assert_type(result.message.text, str)
    assert_type(result.messages, tuple[Message, ...])
    assert_type(result.usage, Usage)
    assert_type(result.usage.total_tokens, int | None)
    assert_type(result.usage.cost, float | None)
    assert_type(result.finish_reason, str | None)
    assert_type(result.degraded, bool)
    assert_type(result.error, BaseException | None)
    assert_type(result.agent, str)
    assert_type(result.run_id, str)
    assert_type(result.state, Any)
    assert_type(result.stopped_by, str | None)


def change(result: Result, reply: ChatReply) -> None:
    assert_type(result.replace(text="changed"), Result)
    assert_type(result.replace(message=Assistant("changed")), Result)
    assert_type(result.replace(messages=[*result.messages, Assistant("changed")], finish_reason=None), Result)
    assert_type(reply.replace(text="changed", tool_calls=[ToolUse("add", {"a": 1})]), ChatReply)
    assert_type(reply.replace(usage=reply.usage + Usage(input_tokens=1), reasoning=None, model="other"), ChatReply)


def of_another_type(result: Result[int], anything: Result[Any]) -> None:
    assert_type(result.output, int)
    assert_type(result.text, str)
    assert_type(result.replace(text="7"), Result[int])
    assert_type(anything.output, Any)


assert_type(Result("hello", output=7), Result[int])
assert_type(Result("hello"), Result)
assert_type(Result("hello", messages=[Assistant("hello")]).messages, tuple[Message, ...])
assert_type(ChatReply(tool_calls=[ToolUse("add")]).tool_calls, tuple[ToolUse, ...])
assert_type(ChatReply("hello"), ChatReply)
assert_type(ChatReply("", (ToolUse("add", {"a": 1, "b": 2}),)).tool_calls, tuple[ToolUse, ...])
assert_type(ChatReply(tool_calls=(ToolUse("add"),), usage=Usage(input_tokens=1, output_tokens=2)).usage, Usage)
assert_type(Usage(requests=1) + Usage(requests=2, cost=0.5), Usage)
assert_type(sum([Usage(requests=1), Usage(requests=2)], Usage()), Usage)


def a_result() -> Result:
    """Where a type is expected, the short form is of that type."""
    return Result("hello")


def refused_results(result: Result) -> None:
    result.replace(txt="changed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    result.replace(text=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result.replace(messages="hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result.replace(messages=["hello"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    result.replace(message="hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result.replace(agent="other")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    result.text = "changed"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    result.messages.append(Assistant("hello"))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    result.content  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Result(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Result("hello", txt="hello")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Result("hello", usage={"requests": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    number: int = Result[str]("hello").output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(number)


def refused_replies(reply: ChatReply) -> None:
    reply.replace(txt="changed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    reply.replace(text=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    reply.replace(tool_calls=["add"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    reply.text = "changed"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    reply.content  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ChatReply(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ChatReply("hello", finish="stop")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ChatReply("hello", usage=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Usage(tokens=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Usage(input_tokens="7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Usage() + 7  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
