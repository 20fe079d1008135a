"""The model `"demo"`: by which rules it answers, and where they end (O1)."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest

from middlechain import (
    Agent,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    Image,
    Message,
    System,
    Text,
    TextDelta,
    Tool,
    ToolMessage,
    ToolUse,
    Usage,
    User,
    tool,
)
from middlechain.models.demo import DemoModel
from middlechain.testing import collect

ABOUT = "(I am a set of rules, not a language model.)"
on_both_loops = pytest.mark.anyio


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


@tool
def order_status(order_id: int) -> str:
    """Look up the status of one order."""
    return f"order {order_id} is shipped"


@tool
def refund_order(order_id: int, amount: float) -> str:
    """Pay money back."""
    return f"{amount} of {order_id}"


@tool
def greet(name: str, tone: Literal["warm", "cool"] = "warm", times: int | None = None) -> str:
    """Write a greeting."""
    return f"{tone} {name} {times}"


@tool
def paint(colour: Colour, coats: Literal[2] = 2) -> str:
    """Paint the fence."""
    return colour.value


@tool
def switch(on: bool) -> str:
    """Flip the lamp."""
    return str(on)


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


TOOLS = (order_status, refund_order, greet, paint, switch, now)


async def ask(text: str, *tools: Tool) -> ChatReply:
    return await DemoModel().chat(ChatCall((System("Be kind."), User(text)), tools or TOOLS))


async def called(text: str, *tools: Tool) -> tuple[ToolUse, ...]:
    return (await ask(text, *tools)).tool_calls


@on_both_loops
async def test_the_tool_that_shares_most_words_is_called() -> None:
    assert await called("Refund order 1042: 20 euros") == (ToolUse("refund_order", {"order_id": 1042, "amount": 20}),)
    assert await called("status of ORDER 1042?") == (ToolUse("order_status", {"order_id": 1042}),)


@on_both_loops
async def test_of_equals_the_first_tool_is_called() -> None:
    assert await called("order 1", order_status, refund_order) == (ToolUse("order_status", {"order_id": 1}),)


@on_both_loops
async def test_a_stop_word_in_common_is_not_enough_to_call_a_tool() -> None:
    assert await called("one of the 7") == ()
    assert await called("hello 7") == ()


@on_both_loops
async def test_a_tool_without_parameters_is_called_without_arguments() -> None:
    assert await called("what time is it?") == (ToolUse("now", {}),)


@on_both_loops
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('greeting for "Ada Lovelace"', {"name": "Ada Lovelace"}),
        ("greeting for “Ada”", {"name": "Ada"}),
        ("greeting for 'Ada'", {"name": "Ada"}),
        ("Ada's greeting isn't for 'Grace'", {"name": "Grace"}),
        ('greeting for "Ada", cool, 3 times', {"name": "Ada", "tone": "cool", "times": 3}),
        ('greeting for "Ada 9", coolest', {"name": "Ada 9"}),
        ('greeting for ""', {"name": ""}),
    ],
)
async def test_arguments_are_quoted_strings_numbers_and_enum_values_of_the_message(
    text: str, arguments: dict[str, Any]
) -> None:
    assert await called(text) == (ToolUse("greet", arguments),)


@on_both_loops
@pytest.mark.parametrize(
    ("text", "order", "amount"),
    [
        ("refund order 5 with 2.50", 5, 2.5),
        ("refund order 5, -3.", 5, -3),
        ("refund 2.5 for order 7", 7, 2.5),
        ("refund order-5 by 3%", 5, 3),
    ],
)
async def test_numbers_are_taken_in_order_by_the_type_that_the_schema_asks_for(
    text: str, order: int, amount: float
) -> None:
    assert await called(text) == (ToolUse("refund_order", {"order_id": order, "amount": amount}),)


@on_both_loops
@pytest.mark.parametrize("number", ["9" * 5000, "7th", "v7", "1.5", "1.2.3"])
async def test_what_is_no_whole_number_is_not_read_as_one(number: str) -> None:
    assert await called(f"status of order {number}") == ()


@on_both_loops
async def test_enum_classes_and_single_values_are_read_too() -> None:
    assert await called("paint the fence Dark Blue, 2 coats") == (
        ToolUse("paint", {"colour": "dark blue", "coats": 2}),
    )


@on_both_loops
@pytest.mark.parametrize(
    ("text", "needed", "way"),
    [
        ("status of my order", "order_status I need 'order_id'", "give it as a whole number"),
        ("refund order 1042", "refund_order I need 'amount'", "give it as a number"),
        ("write a greeting", "greet I need 'name'", "put it in quotes"),
        ("paint it green", "paint I need 'colour'", "say one of red, dark blue"),
        ("flip the lamp", "switch I need 'on'", "I cannot read a value of its type from a message"),
    ],
)
async def test_a_required_argument_that_is_missing_is_asked_for_and_nothing_is_called(
    text: str, needed: str, way: str
) -> None:
    reply = f"To call {needed}, and your message does not hold it; {way}. {ABOUT}"
    assert await ask(text) == ChatReply(reply, model="demo")


@on_both_loops
async def test_without_a_fitting_tool_it_says_what_it_heard_and_what_it_has() -> None:
    reply = await ask("hello there", order_status, now)
    assert reply.text == (
        f"You said: hello there\nNo tool of mine shares a word with that; I have order_status, now. {ABOUT}"
    )


@on_both_loops
async def test_without_any_tool_it_says_what_it_heard() -> None:
    assert (await DemoModel().chat(ChatCall((User("hello"),)))).text == f"You said: hello {ABOUT}"


@on_both_loops
@pytest.mark.parametrize("messages", [(), (User(" "),), (User([Image(url="http://x/y.png")]),), (System("status"),)])
async def test_without_any_text_from_the_user_it_says_so(messages: tuple[Message, ...]) -> None:
    assert (await DemoModel().chat(ChatCall(messages))).text == f"You said nothing that I can read. {ABOUT}"


@on_both_loops
async def test_text_in_parts_is_read_like_any_other() -> None:
    call = ChatCall((User([Image(url="http://x/y.png"), Text("status of order 3")]),), TOOLS)
    assert (await DemoModel().chat(call)).tool_calls == (ToolUse("order_status", {"order_id": 3}),)


@on_both_loops
async def test_after_a_tools_result_it_answers_with_it_and_calls_nothing() -> None:
    call = ChatCall((User("status of order 3"), ToolMessage("shipped", "1", "order_status")), TOOLS)
    assert await DemoModel().chat(call) == ChatReply(f"order_status says: shipped {ABOUT}", model="demo")


@on_both_loops
async def test_an_error_result_is_answered_as_one() -> None:
    call = ChatCall((User("status"), ToolMessage("no such order", "1", "order_status", is_error=True)), TOOLS)
    assert (await DemoModel().chat(call)).text == f"order_status reports an error: no such order {ABOUT}"


@on_both_loops
async def test_several_results_are_answered_in_their_order_and_older_ones_not_again() -> None:
    old = (User("a"), ToolMessage("old", "0", "now"))
    call = ChatCall((*old, User("b"), ToolMessage("x", "1", "now"), ToolMessage("y", "2", "greet")), TOOLS)
    assert (await DemoModel().chat(call)).text == f"now says: x\ngreet says: y {ABOUT}"


HANDED_OVER = (
    User("status of order 3"),
    Assistant("", [ToolUse("transfer_to_orders", {}, "1")]),
    ToolMessage("The conversation goes on with orders.", "1", "transfer_to_orders"),
)


@on_both_loops
async def test_a5_it_goes_by_the_users_message_when_the_conversation_was_handed_over_to_it() -> None:
    reply = await DemoModel().chat(ChatCall(HANDED_OVER, TOOLS))
    assert reply.tool_calls == (ToolUse("order_status", {"order_id": 3}),)
    reply = await DemoModel().chat(ChatCall(HANDED_OVER, (now,)))
    assert reply.text.startswith("You said: status of order 3\nNo tool of mine")


@on_both_loops
async def test_after_a_handoff_a_tools_result_is_answered_as_ever() -> None:
    asked = Assistant("", [ToolUse("order_status", {"order_id": 3}, "2")])
    call = ChatCall((*HANDED_OVER, asked, ToolMessage("shipped", "2", "order_status")), TOOLS)
    assert await DemoModel().chat(call) == ChatReply(f"order_status says: shipped {ABOUT}", model="demo")


@on_both_loops
@pytest.mark.parametrize("is_error", [True, False])
async def test_a_handoff_that_was_refused_and_a_tool_named_like_one_have_results_like_any_other(is_error: bool) -> None:
    @tool
    def transfer_to_account(amount: float) -> str:
        """Send money."""
        return "sent"

    tools = () if is_error else (transfer_to_account,)
    call = ChatCall((User("send 5"), ToolMessage("so", "1", "transfer_to_account", is_error=is_error)), tools)
    said = "reports an error" if is_error else "says"
    assert (await DemoModel().chat(call)).text == f"transfer_to_account {said}: so {ABOUT}"


@on_both_loops
async def test_it_streams_word_by_word_and_the_words_make_the_reply() -> None:
    sent: list[str] = []

    async def send(delta: object) -> None:
        assert isinstance(delta, TextDelta)
        sent.append(delta.text)

    reply = await DemoModel().chat(ChatCall((User("hello\n  you"),), streaming=True, send=send))
    assert "".join(sent) == reply.text == f"You said: hello\n  you {ABOUT}"
    assert sent[:4] == ["You", " said:", " hello", "\n  you"]


@on_both_loops
async def test_a_call_that_does_not_stream_is_sent_nothing() -> None:
    async def send(delta: object) -> None:
        raise AssertionError(delta)

    await DemoModel().chat(ChatCall((User("hello"),), streaming=False, send=send))


@on_both_loops
async def test_o1_it_is_the_model_called_demo_and_reports_no_tokens(go: Any) -> None:
    app = App(model="demo", agents=[Agent(name="desk", tools=[order_status])])
    result = await go(app, "desk", "What is the status of order 1042?")
    assert result.text == f"order_status says: order 1042 is shipped {ABOUT}"
    assert result.usage == Usage(requests=2)


@on_both_loops
async def test_s1_through_an_app_each_word_is_an_event_of_its_own() -> None:
    events, result = await collect(App(model="demo:anything").stream(Agent(), "hello"))
    words = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(words) == result.text
    assert len(words) == len(result.text.split())


def test_it_says_what_it_is() -> None:
    assert DemoModel("anything").name == "demo"
    assert repr(DemoModel()) == "DemoModel()"
