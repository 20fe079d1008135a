"""Messages and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from middlechain import (
    Assistant,
    Audio,
    ChatCall,
    Context,
    File,
    Image,
    Message,
    System,
    Text,
    ToolMessage,
    ToolUse,
    User,
)
from middlechain.messages import Part, dump, load

system = System("Be brief.")
user = User([Text("What is this?"), Image(url="https://example.com/cat.png")], name="ada")
assistant = Assistant("Let me see.", [ToolUse("look", {"at": "cat"}), ToolUse("look", '{"at": "dog"}', "call_1")])
answer = ToolMessage("a cat", "call_1", "look", is_error=False)

assert_type(system.text, str)
assert_type(user.content, str | Sequence[Part])
assert_type(user.name, str | None)
assert_type(assistant.tool_calls, tuple[ToolUse, ...])
assert_type(assistant.tool_calls[0].arguments, str)
assert_type(assistant.reasoning, str | None)
assert_type(assistant.finish_reason, str | None)
assert_type(answer.tool_call_id, str)

assert_type(system.with_text("changed"), System)
assert_type(user.with_text("changed"), User)
assert_type(assistant.with_text("changed"), Assistant)
assert_type(answer.with_text("changed"), ToolMessage)
assert_type(assistant.replace(content="changed", tool_calls=[], reasoning=None), Assistant)

User((Text("hello"), Audio(b"", format="mp3"), File(b"", "a.pdf"), File(id="file_1"), Image(data=b"")))

history: list[Message] = [system, user, assistant, answer]
assert_type(dump(history), list[dict[str, Any]])
assert_type(load(dump(history)), list[Message])
assert_type(dump([system, user]), list[dict[str, Any]])


def told_apart(message: Message) -> str:
    assert_type(message.text, str)
    role: str = message.role
    assert_type(message.with_text("changed"), System | User | Assistant | ToolMessage)
    if message.role == "assistant":
        assert_type(message, Assistant)
    if isinstance(message, Assistant):
        assert_type(message.tool_calls, tuple[ToolUse, ...])
    match message:
        case System(content):
            assert_type(content, str | Sequence[Part])
            return message.text
        case User(name=name):
            return name or role
        case Assistant(tool_calls=calls):
            return ", ".join(call.name for call in calls)
        case ToolMessage():
            return message.name


def parts_of(message: Message) -> list[Part]:
    return [Text(message.content)] if isinstance(message.content, str) else list(message.content)


def kind_of(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Image(url=url):
            return url or ""
        case Audio(format=format):
            return format
        case File(name=name):
            return name or ""


async def sent_on(call: ChatCall, ctx: Context[Any]) -> None:
    call.replace(messages=[System("Be brief."), *call.messages])
    call.replace(messages=[message.with_text(message.text.upper()) for message in call.messages])
    call.replace(messages=[message for message in call.messages if not isinstance(message, System)])
    call.replace(messages=history)
    of_two_kinds = [User("hello"), Assistant("Hello!")]
    call.replace(messages=of_two_kinds)
    ChatCall(of_two_kinds, tools=[])
    await ctx.chat(history)
    await ctx.chat([User("hello"), Assistant("Hello!"), User("Who are you?")])


def refused(message: Message) -> None:
    User()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    User(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    User(["hello"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    User("hello", nmae="ada")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    System("Be brief.", name="ada")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Assistant("hello", tool_calls=["look"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Assistant("hello", tool_calls=ToolUse("look"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ToolMessage("a cat")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ToolUse("look", ["cat"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ToolUse()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Image("https://example.com/cat.png", bytes=b"")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Audio()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    message.text = "changed"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    message.role = "user"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    message.tool_calls  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    message.with_text(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    message.with_text()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    user.content = "changed"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assistant.replace(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assistant.replace(tool_calls=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    dump("hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    dump([{"role": "user"}])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    load("hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    load([user])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    more: list[Message] = ["hello"]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    print(more)
