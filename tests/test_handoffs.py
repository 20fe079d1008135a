"""Handoffs: a model moves the conversation to another agent (A5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from middlechain import (
    Agent,
    AgentFinished,
    AgentStarted,
    App,
    Assistant,
    ChatReply,
    ConfigurationError,
    Context,
    Deny,
    Enforced,
    Event,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    Message,
    ModelStarted,
    Result,
    RunFinished,
    Settings,
    System,
    TextDelta,
    ToolCall,
    ToolFinished,
    ToolMessage,
    ToolOutput,
    ToolUse,
    Usage,
    User,
    loop,
    parallel,
    repeats,
    sequence,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .guarding import CANNED, against, found, noting, redacting
from .scenes import Boom, deltas, fold

pytestmark = pytest.mark.anyio

GOES_ON = "The conversation goes on with b."


def to(name: str, id: str = "t1", **args: Any) -> ToolUse:
    """A transfer as a model writes it."""
    return ToolUse(f"transfer_to_{name}", args, id)


TO_B = (ToolUse("transfer_to_b", {}, "t1"),)


def b_says(*replies: Any, **options: Any) -> Agent:
    """The second agent."""
    options = {"name": "b", "instructions": "You are b.", "model": ScriptedModel(replies or ["b says"]), **options}
    return Agent(**options)


def a_hands_over(*others: Any, replies: Any = (TO_B,), **options: Any) -> Agent:
    """The first agent, whose first reply is a transfer to `b`."""
    options = {"name": "a", "instructions": "You are a.", "model": ScriptedModel(replies), **options}
    return Agent(handoffs=others, **options)


def calls_of(agent: Any) -> list[Any]:
    """The calls that the agent's model got."""
    calls: list[Any] = agent.model.calls
    return calls


def results_in(result: Any) -> list[tuple[str, bool]]:
    """Of each tool call: whose result it is, and whether that is an error."""
    return [(message.name, message.is_error) for message in result.messages if isinstance(message, ToolMessage)]


def check_valid(messages: Sequence[Message]) -> None:
    """What any server takes: it begins with the user, and each call has its result right behind it."""
    said = [message for message in messages if not isinstance(message, System)]
    assert isinstance(said[0], User)
    open_calls: list[str] = []
    for message in said:
        if isinstance(message, ToolMessage):
            open_calls.remove(message.tool_call_id)
            continue
        assert open_calls == []
        if isinstance(message, Assistant):
            open_calls = [use.id for use in message.tool_calls]
    assert open_calls == []


def check_s1(events: Sequence[Event], result: Result) -> None:
    """What was streamed of each turn is what the result of its step says, behind what was carried over."""
    live = fold(events)
    before = 0
    answered = [event for event in events if isinstance(event, AgentFinished) and event.result is not None]
    for event in answered:
        assert event.result is not None
        answers = [message.text for message in event.result.messages if isinstance(message, Assistant)]
        for turn, text in enumerate(answers[before:], 1):
            assert live.pop((event.step, turn), "") == text
        before = len(answers)
    assert not any(live.values())
    assert answered[-1].result is not None
    assert answered[-1].result.messages == result.messages


@tool
async def look(x: int = 0) -> str:
    """Look."""
    return f"saw {x}"


async def the_text(app: App, agent: Any) -> tuple[str, Result]:
    """What `stream.text()` gives, and the result."""
    async with app.stream(agent, "hi") as stream:
        return "".join([piece async for piece in stream.text()]), stream.result


# --- what the model is offered ---------------------------------------------------------------------------------------


async def test_a5_the_model_is_offered_a_transfer_for_each_handoff_after_its_own_tools(go: Go) -> None:
    c = Agent(name="c", model="demo")
    agent = a_hands_over(b_says(description="Knows bees."), c, replies=["done"], tools=[look])
    await go(App(), agent, "hi")
    own, first, second = calls_of(agent)[0].tools
    assert (own.name, first.name, second.name) == ("look", "transfer_to_b", "transfer_to_c")
    assert first.description == "Hand the conversation over to b, who answers from then on. Knows bees."
    assert second.description == "Hand the conversation over to c, who answers from then on."
    assert list(first.schema["properties"]) == ["reason"]
    assert "required" not in first.schema


async def test_a5_without_handoffs_nothing_is_offered(go: Go) -> None:
    agent = a_hands_over(replies=["done"], tools=[look])
    await go(App(), agent, "hi")
    assert [tool.name for tool in calls_of(agent)[0].tools] == ["look"]


@pytest.mark.parametrize("name", ["Billing desk (EU)", "Über/Büro", "x" * 80, "two  words"])
async def test_a5_any_name_of_an_agent_makes_a_name_that_servers_take(name: str, go: Go) -> None:
    b = b_says(name=name)
    agent = a_hands_over(b, replies=[lambda call: [ToolUse(call.tools[0].name, {}, "t1")]])
    result = await go(App(), agent, "hi")
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", calls_of(agent)[0].tools[0].name)
    assert (result.text, result.agent) == ("b says", name)


async def test_a5_a_name_with_a_space_is_told_as_it_is(go: Go) -> None:
    agent = a_hands_over(b_says(name="front desk"), replies=[[to("front_desk")]])
    result = await go(App(), agent, "hi")
    assert result.messages[2].text == "The conversation goes on with front desk."


async def test_a5_a_class_may_get_the_conversation_and_is_made_once_for_a_run(go: Go) -> None:
    made: list[Agent] = []

    class Bee(Agent):
        """Notes that it was made."""

        model = ScriptedModel(lambda call: "buzz")

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    agent = a_hands_over(Bee, replies=lambda call: [to("Bee")])
    app = App()
    for _ in range(2):
        made.clear()
        result = await go(app, agent, "hi")
        assert (result.text, result.agent, len(made)) == ("buzz", "Bee", 1)


async def test_a5_an_agent_of_the_app_is_found_by_its_name(go: Go) -> None:
    b = b_says(description="Knows bees.")
    agent = a_hands_over("b")
    result = await go(App(agents=[agent, b]), agent, "hi")
    assert (result.text, result.agent) == ("b says", "b")
    assert calls_of(agent)[0].tools[0].description.endswith("Knows bees.")


async def test_a5_a_class_of_the_app_is_found_by_its_name_too(go: Go) -> None:
    class Bee(Agent):
        """One of the app's."""

        model = ScriptedModel(lambda call: "buzz")

    result = await go(App(agents=[Bee]), a_hands_over("Bee", replies=[[to("Bee")]]), "hi")
    assert result.text == "buzz"


async def test_a5_an_agent_that_owns_its_step_may_get_the_conversation(go: Go) -> None:
    class Own(Agent):
        """Answers without a model."""

        async def run(self, input: Any, ctx: Context) -> str:
            return f"{input} from {ctx.agent.name}"

    result = await go(App(), a_hands_over(Own(name="b")), "hi")
    assert (result.text, result.agent) == ("hi from b", "b")
    assert [type(message) for message in result.messages] == [User, Assistant, ToolMessage, Assistant]


def team(make: Any, last: Any) -> Any:
    """A flow that may get the conversation, of an agent or a function and another agent."""
    first = (
        (lambda input, ctx: "c says") if last is None else Agent(name="c", model=ScriptedModel(lambda call: "c says"))
    )
    options = {"max_iterations": 2} if make is loop else {}
    return make(first, Agent(name="d", model=ScriptedModel(lambda call: "d says")), name="b", **options)


@pytest.mark.parametrize("last", [None, "agent"])
@pytest.mark.parametrize("make", [sequence, loop, parallel])
async def test_a4_a_flow_may_get_the_conversation_as_any_agent_may(make: Any, last: Any, go: Go) -> None:
    agent = a_hands_over(team(make, last), replies=[["I pass.", to("b")]])
    result = await go(App(), agent, "hi")
    assert result.text == ("c says\n\nd says" if make is parallel else "d says")
    texts = [message.text for message in result.messages]
    assert texts[:3] == ["hi", "I pass.", GOES_ON]
    assert texts.count("I pass.") == 1
    check_valid(result.messages)


@pytest.mark.parametrize("make", [sequence, loop, parallel])
async def test_s6_text_is_that_of_a_flow_that_got_the_conversation(make: Any) -> None:
    text, result = await the_text(App(), a_hands_over(team(make, "agent"), replies=[["I pass.", to("b")]]))
    assert text == result.text


async def test_c3_of_a_class_each_object_answers_with_its_own_tools(go: Go) -> None:
    numbers: list[int] = []

    class Counting(Agent):
        """Its tool is a method, so it is another one for each run."""

        def __init__(self) -> None:
            numbers.append(len(numbers))
            model = ScriptedModel([[ToolUse("mine", {}, "m")], "done"])
            super().__init__(model=model, tools=[self.mine], handoffs=[b_says()])
            object.__setattr__(self, "number", numbers[-1])

        number: int

        async def mine(self) -> str:
            return str(self.number)

    app = App()
    said = [(await go(app, Counting, "hi")).messages[2].text for _ in range(2)]
    assert said == ["0", "1"]


# --- what the second agent gets --------------------------------------------------------------------------------------


async def test_a5_the_second_agent_sees_its_own_prompt_the_history_and_the_turns_so_far(go: Go) -> None:
    b = b_says(tools=[look])
    agent = a_hands_over(
        b, replies=[["Let me look.", ToolUse("look", {"x": 1}, "l1")], ["I pass.", to("b", reason="?")]]
    )
    agent.tools = [look]
    before = [User("earlier"), Assistant("yes?")]
    await go(App(), agent, "hi", history=before)
    (call,) = calls_of(b)
    assert call.messages == (
        System("You are b."),
        User("earlier"),
        Assistant("yes?"),
        User("hi"),
        Assistant("Let me look.", [ToolUse("look", {"x": 1}, "l1")], None, "tool_calls"),
        ToolMessage("saw 1", "l1", "look"),
        Assistant("I pass.", [to("b", reason="?")], None, "tool_calls"),
        ToolMessage(GOES_ON, "t1", "transfer_to_b"),
    )
    assert [tool.name for tool in call.tools] == ["look"]


async def test_a5_the_result_is_that_of_the_exchange_and_says_who_answered(go: Go) -> None:
    b = b_says([ToolUse("look", {"x": 2}, "l2")], "b says", tools=[look])
    result = await go(App(), a_hands_over(b), "hi", history=[User("earlier"), Assistant("yes?")])
    assert (result.text, result.agent, result.finish_reason) == ("b says", "b", "stop")
    assert result.messages == (
        User("hi"),
        Assistant("", [to("b")], None, "tool_calls"),
        ToolMessage(GOES_ON, "t1", "transfer_to_b"),
        Assistant("", [ToolUse("look", {"x": 2}, "l2")], None, "tool_calls"),
        ToolMessage("saw 2", "l2", "look"),
        Assistant("b says", (), None, "stop"),
    )


async def test_m10_its_agent_layers_see_who_asked_and_what_the_first_was_asked(go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((call.agent.name, call.input, call.via, call.caller, call.depth))
        await next()

    agent = a_hands_over(b_says())
    await go(App().use(agent=layer), agent, "hi")
    assert seen == [("a", "hi", "root", None, 0), ("b", "hi", "handoff", agent, 1)]


async def test_m10_the_layers_around_the_first_have_returned_when_the_second_begins(go: Go) -> None:
    log: list[str] = []

    async def agents(call: Any, next: Any) -> None:
        log.append(f"{call.agent.name} in")
        await next()
        log.append(f"{call.agent.name} out")

    async def runs(call: Any, next: Any) -> None:
        log.append("run in")
        await next()
        log.append("run out")

    await go(App().use(agent=agents, run=runs), a_hands_over(b_says()), "hi")
    assert log == ["run in", "a in", "a out", "b in", "b out", "run out"]


async def test_a5_a_user_message_with_parts_and_a_name_is_handed_over_as_it_is(go: Go) -> None:
    b = b_says()
    asked = User("hi", name="Zoe")
    await go(App(), a_hands_over(b), asked)
    assert calls_of(b)[0].messages[1] == asked


async def test_c2_state_data_and_what_was_set_on_ctx_are_the_same_for_both(go: Go) -> None:
    seen: list[Any] = []

    class Setting(Agent):
        """Sets what the second one reads."""

        def before_tool(self, call: Any, ctx: Context) -> None:
            ctx.note = "set by a"

    class Reading(Agent):
        """Reads it."""

        def before_run(self, input: Any, ctx: Context) -> None:
            seen.append((ctx.note, ctx.data["key"], ctx.run_id))

    agent = Setting(name="a", model=ScriptedModel([[to("b")]]), handoffs=[Reading(name="b", model="demo")])
    result = await go(App(), agent, "hi", data={"key": 1})
    assert seen == [("set by a", 1, result.run_id)]
    assert result.state.note == "set by a"


# --- one reply, several calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1])
async def test_a5_the_other_tools_of_the_reply_settle_first_also_when_they_are_slower(place: int, go: Go) -> None:
    transferred = anyio.Event()
    log: list[str] = []

    @tool
    async def slow() -> str:
        await transferred.wait()
        log.append("slow")
        return "slow at last"

    async def layer(call: Any, next: Any) -> None:
        await next()
        if call.name == "transfer_to_b":
            log.append("transfer")
            transferred.set()

    def answer(call: Any) -> str:
        log.append("b")
        return "b says"

    b = b_says(answer)
    uses = [to("b"), ToolUse("slow", {}, "s1")] if place == 0 else [ToolUse("slow", {}, "s1"), to("b")]
    result = await go(App().use(tool=layer), a_hands_over(b, replies=[uses], tools=[slow]), "hi")
    assert log == ["transfer", "slow", "b"]
    assert [message.text for message in result.messages[2:4]] == sorted([GOES_ON, "slow at last"], reverse=place == 1)
    assert result.text == "b says"


async def test_a5_a_tool_that_fails_beside_the_transfer_does_not_stop_it(go: Go) -> None:
    @tool
    async def fail() -> str:
        raise Boom

    agent = a_hands_over(b_says(), replies=[[ToolUse("fail", {}, "f1"), to("b")]], tools=[fail])
    result = await go(App(), agent, "hi")
    assert result.text == "b says"
    assert results_in(result) == [("fail", True), ("transfer_to_b", False)]


@pytest.mark.parametrize("first_to_end", ["transfer_to_b", "transfer_to_c"])
async def test_a5_of_two_transfers_the_first_in_call_order_is_taken_whichever_ends_first(
    first_to_end: str, go: Go
) -> None:
    ended = anyio.Event()

    async def layer(call: Any, next: Any) -> None:
        if call.name != first_to_end:
            await ended.wait()
        await next()
        ended.set()

    b, c = b_says(), b_says(name="c")
    agent = a_hands_over(c, b, replies=[[to("b", "1"), to("c", "2")]])
    result = await go(App().use(tool=layer), agent, "hi")
    assert result.agent == "b"
    assert calls_of(c) == []
    assert results_in(result) == [("transfer_to_b", False), ("transfer_to_c", True)]
    assert "transfer" in result.messages[3].text


async def test_a5_two_transfers_to_the_same_agent_are_one_and_an_error_result(go: Go) -> None:
    b = b_says()
    result = await go(App(), a_hands_over(b, replies=[[to("b", "1"), to("b", "2")]]), "hi")
    assert results_in(result) == [("transfer_to_b", False), ("transfer_to_b", True)]
    assert len(calls_of(b)) == 1


async def test_a5_where_the_first_of_two_transfers_is_refused_nobody_gets_the_conversation(go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        return ToolOutput("not to b", is_error=True) if call.name == "transfer_to_b" else await next()

    b, c = b_says(), b_says(name="c")
    result = await go(App().use(tool=layer), a_hands_over(b, c, replies=[[to("b", "1"), to("c", "2")], "a says"]), "hi")
    assert (result.agent, result.text) == ("a", "a says")
    assert results_in(result) == [("transfer_to_b", True), ("transfer_to_c", True)]
    assert calls_of(b) == calls_of(c) == []


# --- a transfer is a tool call like any other ------------------------------------------------------------------------


async def test_a5_a_tool_layer_may_refuse_the_transfer_and_the_first_agent_goes_on(go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        return ToolOutput("not now", is_error=True)

    b = b_says()
    agent = a_hands_over(b, replies=[[to("b")], "a says"])
    result = await go(App().use(tool=layer), agent, "hi")
    assert (result.text, result.agent, calls_of(b)) == ("a says", "a", [])
    assert calls_of(agent)[1].messages[-1] == ToolMessage("not now", "t1", "transfer_to_b", is_error=True)


@pytest.mark.parametrize("answer", ["done in its place", ToolOutput("done in its place")])
async def test_m4_a_tool_layer_that_answers_in_its_place_hands_nothing_over(answer: Any, go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        return answer

    b = b_says()
    result = await go(App().use(tool=layer), a_hands_over(b, replies=[[to("b")], "a says"]), "hi")
    assert (result.agent, calls_of(b)) == ("a", [])
    assert results_in(result) == [("transfer_to_b", False)]


async def test_a5_a_tool_layer_may_let_the_transfer_run_and_withdraw_it(go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        await next()
        return ToolOutput("on second thoughts", is_error=True)

    result = await go(App().use(tool=layer), a_hands_over(b_says(), replies=[[to("b")], "a says"]), "hi")
    assert result.agent == "a"


class Hooked(Agent):
    """Hands over, and has one hook of a tool call at a time."""

    tool_hook: Any = None

    def before_tool(self, call: ToolCall, ctx: Context) -> Any:
        return self.tool_hook("before", call)

    def after_tool(self, result: Any, ctx: Context) -> Any:
        return self.tool_hook("after", result)


def hooked(hook: Any, b: Agent, *replies: Any) -> Hooked:
    agent = Hooked(name="a", model=ScriptedModel([*replies, "a says"]), tools=[look], handoffs=[b])
    agent.tool_hook = hook
    return agent


async def test_h4_before_tool_may_make_another_call_of_the_transfer(go: Go) -> None:
    def hook(when: str, given: Any) -> Any:
        return given.replace(name="look", args={"x": 3}) if when == "before" else None

    b = b_says()
    result = await go(App(), hooked(hook, b, [to("b")]), "hi")
    assert (result.agent, calls_of(b), result.messages[2].text) == ("a", [], "saw 3")


async def test_h4_before_tool_may_make_a_transfer_of_another_call(go: Go) -> None:
    def hook(when: str, given: Any) -> Any:
        return ToolCall("transfer_to_b", {"reason": "better"}) if when == "before" else None

    result = await go(App(), hooked(hook, b_says(), [ToolUse("look", {}, "l1")]), "hi")
    assert (result.agent, result.text) == ("b", "b says")
    assert result.messages[2] == ToolMessage(GOES_ON, "l1", "look")


async def test_m3_a_tool_layer_may_make_a_transfer_of_another_call(go: Go) -> None:
    async def layer(call: Any, next: Any) -> None:
        await next(call.replace(name="transfer_to_b", args={}))

    agent = a_hands_over(b_says(), replies=[[ToolUse("look", {}, "l1")]], tools=[look])
    result = await go(App().use(tool=layer), agent, "hi")
    assert (result.agent, result.text) == ("b", "b says")


async def test_h5_after_tool_sees_the_transfer_and_may_change_what_history_says_of_it(go: Go) -> None:
    seen: list[Any] = []

    def hook(when: str, given: Any) -> Any:
        if when == "before":
            return None
        seen.append((given.name, given.args, given.output, given.is_error, given.id))
        return "b takes over"

    b = b_says()
    result = await go(App(), hooked(hook, b, [to("b", reason="bees")]), "hi")
    assert seen == [("transfer_to_b", {"reason": "bees"}, GOES_ON, False, "t1")]
    assert result.agent == "b"
    assert calls_of(b)[0].messages[-1] == ToolMessage("b takes over", "t1", "transfer_to_b")


async def test_h5_after_tool_that_marks_the_transfer_as_failed_keeps_the_conversation(go: Go) -> None:
    def hook(when: str, given: Any) -> Any:
        return ToolOutput("no", is_error=True) if when == "after" else None

    b = b_says()
    result = await go(App(), hooked(hook, b, [to("b")]), "hi")
    assert (result.agent, result.text, calls_of(b)) == ("a", "a says", [])


@pytest.mark.parametrize("arguments", ['{"reason": 1}', '{"reason": "x", "colour": "red"}', "[]", "{"])
async def test_t5_a_transfer_with_arguments_that_miss_its_schema_does_not_run(arguments: str, go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[[ToolUse("transfer_to_b", arguments, "t1")], "a says"])
    result = await go(App(), agent, "hi")
    assert (result.agent, calls_of(b)) == ("a", [])
    assert results_in(result) == [("transfer_to_b", True)]


async def test_t5_a_transfer_to_nobody_is_an_error_result_that_names_the_tools(go: Go) -> None:
    agent = a_hands_over(b_says(), replies=[[to("bee")], "a says"])
    result = await go(App(), agent, "hi")
    assert results_in(result) == [("transfer_to_bee", True)]
    assert "transfer_to_b" in result.messages[2].text


async def test_t5_a_transfer_that_a_chat_layer_took_from_the_offer_is_no_tool(go: Go) -> None:
    async def layer(call: Any, next: Any) -> None:
        await next(call.replace(tools=[]))

    b = b_says()
    result = await go(App().use(chat=layer), a_hands_over(b, replies=[[to("b")], "a says"]), "hi")
    assert (result.agent, calls_of(b)) == ("a", [])


@pytest.mark.parametrize("reason", ["length", "safety", "incomplete"])
async def test_t8_a_transfer_of_a_reply_that_was_cut_off_does_not_run(reason: str, go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[ChatReply("", [to("b")], finish_reason=reason), "a says"])
    result = await go(App(), agent, "hi")
    assert (result.agent, results_in(result)) == ("a", [("transfer_to_b", True)])


async def test_a5_code_cannot_hand_over_by_calling_the_tool(go: Go) -> None:
    outputs: list[ToolOutput] = []

    @tool
    async def sneak(ctx: Context) -> str:
        outputs.append(await ctx.call_tool("transfer_to_b", {}))
        return "sneaked"

    b = b_says()
    agent = a_hands_over(b, replies=[[ToolUse("sneak", {}, "s1")], "a says"], tools=[sneak])
    result = await go(App(), agent, "hi")
    assert (result.agent, calls_of(b)) == ("a", [])
    assert outputs[0].is_error


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("approved", [True, False])
async def test_t11_while_a_call_beside_the_transfer_waits_nothing_is_handed_over(approved: bool) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[[ToolUse("pay", {}, "p1"), to("b")]], tools=[pay])
    conversation = App().conversation(agent)
    result = await conversation.send("hi")
    assert (result.finish_reason, result.agent, calls_of(b)) == ("pending", "a", [])
    assert [call.name for call in conversation.pending] == ["pay"]
    result = await conversation.resume({"p1": approved})
    assert (result.text, result.agent, conversation.agent) == ("b says", "b", "b")
    assert results_in(result) == [("pay", not approved), ("transfer_to_b", False)]
    check_valid(result.messages)


# --- hooks of both ---------------------------------------------------------------------------------------------------


class Noted(Agent):
    """Notes which of its hooks fire, and with what."""

    log: list[Any]

    def note(self, *what: Any) -> None:
        vars(self).setdefault("log", []).append(what)

    def before_run(self, input: Any, ctx: Context) -> None:
        self.note("before_run", input)

    def before_prompt(self, prompt: str, ctx: Context) -> None:
        self.note("before_prompt", prompt)

    def before_tool(self, call: Any, ctx: Context) -> None:
        self.note("before_tool", call.name)

    def after_tool(self, result: Any, ctx: Context) -> None:
        self.note("after_tool", result.name)

    def after_response(self, response: str, ctx: Context) -> None:
        self.note("after_response", response)

    def after_run(self, result: Any, ctx: Context) -> None:
        self.note("after_run", result.text, result.agent)

    def on_error(self, error: Exception, ctx: Context) -> None:
        self.note("on_error", type(error))


def noted(second: Any = "b says") -> tuple[Noted, Noted]:
    b = Noted(name="b", model=ScriptedModel([second]), instructions="You are b.")
    return Noted(name="a", model=ScriptedModel([[to("b")]]), instructions="You are a.", handoffs=[b]), b


async def test_a5_the_one_who_hands_over_gets_no_after_response_and_no_after_run(go: Go) -> None:
    a, b = noted()
    await go(App(), a, "hi")
    assert a.log == [
        ("before_run", "hi"),
        ("before_prompt", "You are a."),
        ("before_tool", "transfer_to_b"),
        ("after_tool", "transfer_to_b"),
    ]
    assert b.log == [
        ("before_run", "hi"),
        ("before_prompt", "You are b."),
        ("after_response", "b says"),
        ("after_run", "b says", "b"),
    ]


async def test_h2_one_who_answers_in_spite_of_its_handoffs_gets_all_its_hooks(go: Go) -> None:
    agent = Noted(name="a", model=ScriptedModel(["a says"]), handoffs=[b_says()])
    await go(App(), agent, "hi")
    assert [name for name, *_ in agent.log] == ["before_run", "before_prompt", "after_response", "after_run"]


async def test_h7_an_error_of_the_second_goes_to_its_own_on_error_only(go: Go) -> None:
    a, b = noted(Boom())
    with pytest.raises(Boom):
        await go(App(), a, "hi")
    assert ("on_error", Boom) not in a.log
    assert b.log[-1] == ("on_error", Boom)


async def test_h7_on_error_of_the_second_may_answer_and_history_keeps_the_turns_before(go: Go) -> None:
    error = Boom()
    b = b_says(error, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(App(), a_hands_over(b), "hi")
    assert (result.text, result.agent, result.degraded, result.error) == ("sorry", "b", True, error)
    assert [message.text for message in result.messages] == ["hi", "", GOES_ON, "sorry"]
    check_valid(result.messages)


async def test_a5_what_before_run_of_the_first_asked_is_what_the_second_is_asked(go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, hooks=[{"before_run": lambda input, ctx: "hi, please"}])
    result = await go(App(), agent, "hi")
    assert calls_of(b)[0].messages[1] == result.messages[0] == User("hi, please")


async def test_h3_before_run_of_the_second_may_change_what_it_is_asked(go: Go) -> None:
    b = b_says(hooks=[{"before_run": lambda input, ctx: f"{input}!"}])
    result = await go(App(), a_hands_over(b), "hi")
    assert calls_of(b)[0].messages[1] == result.messages[0] == User("hi!")


async def test_h6_what_after_response_of_the_second_returns_is_the_answer(go: Go) -> None:
    b = b_says(hooks=[{"after_response": lambda response, ctx: response.upper()}])
    result = await go(App(), a_hands_over(b), "hi")
    assert (result.text, result.messages[-1].text) == ("B SAYS", "B SAYS")


# --- agent layers ----------------------------------------------------------------------------------------------------


def at_the_handoff(act: Any) -> Any:
    """An agent layer that acts on the step of whoever gets the conversation, and passes all others."""

    async def layer(call: Any, next: Any) -> Any:
        return await act(call, next) if call.via == "handoff" else await next()

    return layer


async def test_m10_an_agent_layer_may_ask_the_second_something_else(go: Go) -> None:
    async def rewrite(call: Any, next: Any) -> Any:
        return await next(call.replace(input="something else"))

    b = b_says()
    result = await go(App().use(agent=at_the_handoff(rewrite)), a_hands_over(b), "hi")
    assert calls_of(b)[0].messages[1] == User("something else")
    assert result.text == "b says"


async def test_m10_an_agent_layer_may_answer_in_the_place_of_the_second(go: Go) -> None:
    async def instead(call: Any, next: Any) -> str:
        return "by the layer"

    b = b_says()
    result = await go(App().use(agent=at_the_handoff(instead)), a_hands_over(b), "hi")
    assert (result.text, result.agent, calls_of(b)) == ("by the layer", "b", [])
    assert [message.text for message in result.messages] == ["hi", "", GOES_ON, "by the layer"]


async def test_m10_an_agent_layer_that_refuses_the_handoff_is_an_error_of_the_second(go: Go) -> None:
    async def refuse(call: Any, next: Any) -> str:
        raise Boom

    b = b_says(hooks=[{"on_error": lambda error, ctx: "refused"}])
    result = await go(App().use(agent=at_the_handoff(refuse)), a_hands_over(b), "hi")
    assert (result.text, result.degraded, calls_of(b)) == ("refused", True, [])


def redirecting(c: Agent) -> Any:
    async def redirect(call: Any, next: Any) -> Any:
        return await call.ctx.run(c, call.input)

    return at_the_handoff(redirect)


async def test_m10_an_agent_layer_may_have_another_one_answer(go: Go) -> None:
    b, c = b_says(), Agent(name="c", model=ScriptedModel(["c says"]))
    result = await go(App().use(agent=redirecting(c)), a_hands_over(b), "hi")
    assert (result.text, calls_of(b)) == ("c says", [])
    assert calls_of(c)[0].messages == (User("hi"),)


async def test_s1_what_another_one_answered_in_its_place_is_streamed_as_the_answer() -> None:
    c = Agent(name="c", model=ScriptedModel(lambda call: "c says"))
    app = App().use(agent=redirecting(c))
    text, result = await the_text(app, a_hands_over(b_says()))
    assert text == result.text == "c says"
    events, _ = await collect(app.stream(a_hands_over(b_says()), "hi"))
    steps = {event.agent: event.step for event in events if isinstance(event, AgentStarted)}
    assert fold(events)[steps["b"], 1] == "c says"


@pytest.mark.parametrize("answer", ["mine", Result("mine")])
@pytest.mark.parametrize("asks", [True, False])
async def test_m10_an_answer_in_place_of_a_turn_that_hands_over_is_the_answer(answer: Any, asks: bool, go: Go) -> None:
    async def layer(call: Any, next: Any) -> Any:
        if asks:
            await next()
        return answer

    b = b_says()
    result = await go(App().use(agent=layer), a_hands_over(b), "hi")
    assert (result.text, result.agent, calls_of(b)) == ("mine", "a", [])
    assert isinstance(result.messages[-1], Assistant)
    check_valid(result.messages)


async def test_m7_a_layer_that_passes_the_result_on_does_not_hinder_the_handoff(go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> Any:
        result = await next()
        seen.append((result.agent, result.text, len(result.messages)))
        return result

    result = await go(App().use(agent=layer, run=layer), a_hands_over(b_says()), "hi")
    assert seen == [("a", "", 3), ("b", "b says", 4), ("b", "b says", 4)]
    assert result.agent == "b"


async def test_m5_an_agent_layer_may_begin_the_step_again_that_then_hands_over(go: Go) -> None:
    async def again(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return await next()

    agent = a_hands_over(b_says(Boom(), "b says"), replies=[Boom(), ["I pass.", to("b")]])
    result = await go(App().use(agent=again), agent, "hi")
    assert [message.text for message in result.messages] == ["hi", "I pass.", GOES_ON, "b says"]


async def test_m5_a_step_that_begins_again_and_answers_hands_nothing_over(go: Go) -> None:
    async def again(call: Any, next: Any) -> Any:
        await next()
        raise Boom

    async def outer(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return "caught"

    b = b_says()
    result = await go(App().use(agent=[outer, again]), a_hands_over(b), "hi")
    assert (result.text, result.agent, calls_of(b)) == ("caught", "a", [])


async def test_s7_a_run_layer_that_begins_again_takes_back_what_both_have_said() -> None:
    async def again(call: Any, next: Any) -> Any:
        try:
            return await next()
        except Boom:
            return await next()

    agent = a_hands_over(b_says(["b be", Boom()], "b says"), replies=lambda call: ["I pass.", to("b")])
    events, result = await collect(App().use(run=again).stream(agent, "hi"))
    first, second, *_ = [event.step for event in events if isinstance(event, AgentStarted)]
    live = fold(events)
    assert live.pop((first, 1)) == live.pop((second, 1)) == ""
    assert list(live.values()) == ["I pass.", "b says"]
    assert result.text == "b says"


# --- guards ----------------------------------------------------------------------------------------------------------


async def test_a5_the_guards_of_the_second_judge_the_input_again(go: Go) -> None:
    log: list[Any] = []
    b = b_says(guardrails={"input": [noting(log, "of b")]})
    agent = a_hands_over(b, guardrails={"input": [noting(log, "of a")]})
    result = await go(App().guard(input=[noting(log, "of the app")]), agent, "hi")
    assert log == ["hi"] * 4
    assert found(result) == [("of the app", "allow"), ("of a", "allow"), ("of b", "allow")]


async def test_a5_the_second_is_asked_what_a_guard_of_the_first_made_of_the_input(go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, guardrails={"input": [redacting("hi")]})
    await go(App(), agent, "hi there")
    assert calls_of(b)[0].messages[1] == User("*** there")


async def test_g2_an_input_that_a_guard_of_the_second_blocks_is_answered_in_its_place(go: Go) -> None:
    b = b_says(guardrails={"input": [against("hi")]})
    result = await go(App(), a_hands_over(b), "hi")
    assert (result.text, result.blocked, result.blocked_by, result.agent) == (CANNED, True, "words", "b")
    assert calls_of(b) == []
    check_valid(result.messages)


async def test_g8_after_such_a_block_the_next_request_is_valid_and_has_nothing_that_was_blocked(go: Go) -> None:
    b = b_says("b says", guardrails={"input": [against("bad")]})
    blocked = await go(App(), a_hands_over(b), "bad")
    await go(App(), b, "good", history=blocked.messages)
    messages = calls_of(b)[0].messages
    check_valid(messages)
    assert not {"bad", CANNED} & {message.text for message in messages}


async def test_c4_a_conversation_goes_on_after_the_second_blocked_its_input() -> None:
    b = b_says(guardrails={"input": [against("bad")]})
    conversation = App().conversation(a_hands_over(b))
    await conversation.send("bad")
    assert (await conversation.send("good")).text == "b says"
    check_valid(calls_of(b)[0].messages)


async def test_g2_a_reply_of_the_second_that_is_blocked_leaves_the_turns_before(go: Go) -> None:
    b = b_says("bad", guardrails={"output": [against("bad")]})
    result = await go(App(), a_hands_over(b), "hi")
    assert (result.text, result.blocked, result.finish_reason) == (CANNED, True, "safety")
    assert [message.text for message in result.messages] == ["hi", "", GOES_ON, CANNED]


async def test_g2_a_reply_that_is_blocked_hands_nothing_over(go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[["bad", to("b")]], guardrails={"output": [against("bad")]})
    result = await go(App(), agent, "hi")
    assert (result.text, result.agent, result.blocked, calls_of(b)) == (CANNED, "a", True, [])


async def test_g7_text_beside_the_transfer_is_no_answer_that_final_guards_judge(go: Go) -> None:
    log: list[Any] = []
    guards = {"output": [noting(log, when="final"), against("pass", when="final")]}
    b = b_says(guardrails={"output": [noting(log, when="final")]})
    result = await go(App(), a_hands_over(b, replies=[["I pass.", to("b")]], guardrails=guards), "hi")
    assert (result.text, result.blocked) == ("b says", False)
    assert log == ["b says"]


@pytest.mark.parametrize("where", ["app", "agent", "run"])
async def test_g1_transfers_are_offered_where_guards_judge_the_replies(where: str, go: Go) -> None:
    log: list[Any] = []
    guards: Any = {"output": [noting(log)]}
    agent = a_hands_over(b_says(), replies=[[to("b", reason="bees")]])
    app = App(guardrails=guards if where == "app" else None)
    agent.guardrails = guards if where == "agent" else None
    result = await go(app, agent, "hi", guardrails=guards if where == "run" else None)
    assert result.agent == "b"
    assert log == (["bees"] if where == "agent" else ["bees", "b says"])


async def test_g3_a_denial_by_the_second_goes_to_the_caller_and_history_stays_valid() -> None:
    b = b_says("bad", "b says", guardrails={"output": [against("bad", Deny("no"))]})
    conversation = App().conversation(a_hands_over(b))
    with pytest.raises(GuardrailDenied):
        await conversation.send("hi")
    assert [type(message) for message in conversation.messages] == [User, Assistant, ToolMessage]
    assert (await conversation.send("again")).text == "b says"
    check_valid(calls_of(b)[-1].messages)


async def test_g3_on_error_of_the_second_may_answer_a_denial(go: Go) -> None:
    b = b_says(guardrails={"input": [against("hi", Deny("no"))]}, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(App(), a_hands_over(b), "hi")
    assert (result.text, result.degraded, result.blocked, result.blocked_by) == ("sorry", True, True, "words")
    assert found(result) == [("words", "deny")]


async def test_g10_validations_are_those_of_both_in_the_order_in_which_they_ran(go: Go) -> None:
    b = b_says(guardrails={"output": [against("b", Enforced("bees"), "of b")]})
    agent = a_hands_over(b, replies=[[to("b", reason="x")]], guardrails={"output": [redacting("x", "of a")]})
    result = await go(App(), agent, "hi")
    assert found(result) == [("of a", "rewrite"), ("of b", "enforced")]


# --- limits, usage ---------------------------------------------------------------------------------------------------


async def test_l1_each_of_the_two_has_turns_of_its_own(go: Go) -> None:
    b = b_says([ToolUse("look", {}, "l2")], "b says", tools=[look])
    result = await go(App(), a_hands_over(b), "hi", limits=Limits(turns=2))
    assert result.text == "b says"


async def test_t1_in_the_last_turn_that_is_allowed_the_transfer_does_not_run(go: Go) -> None:
    b = b_says()
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), a_hands_over(b, replies=[["I pass.", to("b")]]), "hi", limits=Limits(turns=1))
    assert (raised.value.limit, calls_of(b)) == ("turns", [])
    assert raised.value.result.text == "I pass."
    check_valid(raised.value.result.messages)


async def test_l2_where_turns_stop_the_step_the_first_has_the_last_word(go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[["I pass.", to("b")]])
    result = await go(App(), agent, "hi", limits=Limits(turns=1, on_exceed="stop"))
    assert (result.text, result.agent, result.stopped_by, calls_of(b)) == ("I pass.", "a", "limit", [])


@pytest.mark.parametrize("limits", [Limits(chat_calls=1), Limits(depth=0), Limits(tool_calls=0)])
async def test_l1_limits_of_the_run_hold_for_both_together(limits: Limits, go: Go) -> None:
    b = b_says()
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), a_hands_over(b), "hi", limits=limits)
    assert calls_of(b) == []
    check_valid(raised.value.result.messages)


async def test_l1_exactly_as_much_as_both_need_is_allowed(go: Go) -> None:
    result = await go(App(), a_hands_over(b_says()), "hi", limits=Limits(chat_calls=2, tool_calls=1, depth=1))
    assert result.text == "b says"


async def test_l2_a_limit_that_stops_the_second_leaves_what_was_said(go: Go) -> None:
    b = b_says()
    agent = a_hands_over(b, replies=[["I pass.", to("b")]])
    result = await go(App(), agent, "hi", limits=Limits(chat_calls=1, on_exceed="stop"))
    assert (result.stopped_by, result.finish_reason, result.agent) == ("limit", "limit", "b")
    assert [message.text for message in result.messages] == ["hi", "I pass.", GOES_ON]


async def test_c1_ctx_stop_beside_the_transfer_lets_the_second_take_no_turn(go: Go) -> None:
    @tool
    async def stop(ctx: Context) -> str:
        ctx.stop("enough")
        return "stopped"

    b = b_says()
    agent = a_hands_over(b, replies=[[to("b"), ToolUse("stop", {}, "s1")]], tools=[stop])
    result = await go(App(), agent, "hi")
    assert (result.stopped_by, calls_of(b)) == ("stop", [])
    check_valid(result.messages)


def costing(text: str, tokens: int, *uses: ToolUse) -> ChatReply:
    return ChatReply(text, uses, usage=Usage(input_tokens=tokens, output_tokens=1))


@pytest.mark.parametrize("own", [None, Limits(turns=5)])
async def test_a6_the_usage_of_the_result_is_that_of_both(own: Limits | None, go: Go) -> None:
    b = b_says(costing("b says", 20), limits=own)
    result = await go(App(), a_hands_over(b, replies=[costing("", 10, to("b"))], limits=own), "hi")
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.requests) == (30, 2, 2)


@pytest.mark.parametrize("own", [None, Limits(turns=5)])
async def test_a6_nested_in_another_step_the_usage_is_that_of_both_too(own: Limits | None, go: Go) -> None:
    inner: list[Result] = []
    b = b_says(costing("b says", 20), limits=own)
    agent = a_hands_over(b, replies=[costing("", 10, to("b"))], limits=own)

    @tool
    async def delegate(ctx: Context) -> str:
        inner.append(await ctx.run(agent, "sub"))
        return inner[0].text

    outer = Agent(model=ScriptedModel([costing("", 1, ToolUse("delegate", {}, "d1")), costing("done", 1)]))
    outer.tools = [delegate]
    outer.limits = Limits(turns=5)
    result = await go(App(), outer, "hi")
    assert (inner[0].usage.input_tokens, result.usage.input_tokens) == (30, 32)


# --- more than two ---------------------------------------------------------------------------------------------------


async def test_a5_a_conversation_may_be_handed_on_and_on(go: Go) -> None:
    c = Agent(name="c", model=ScriptedModel(["c says"]), instructions="You are c.")
    b = b_says([to("c", "t2")], handoffs=[c])
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append((call.agent.name, call.via, call.caller and call.caller.name, call.depth, call.input))
        await next()

    result = await go(App().use(agent=layer), a_hands_over(b), "hi")
    assert seen == [("a", "root", None, 0, "hi"), ("b", "handoff", "a", 1, "hi"), ("c", "handoff", "b", 2, "hi")]
    assert (result.text, result.agent) == ("c says", "c")
    assert calls_of(c)[0].messages == (System("You are c."), *result.messages[:-1])
    check_valid(result.messages)


async def test_a5_agents_who_hand_a_conversation_to_and_fro_end_at_the_depth(go: Go) -> None:
    b = b_says()
    a = a_hands_over(b)
    b.model = ScriptedModel(lambda call: [to("a", f"b{len(call.messages)}")])
    a.model = ScriptedModel(lambda call: [to("b", f"a{len(call.messages)}")])
    b.handoffs = [a]
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), a, "hi", limits=Limits(depth=3))
    assert raised.value.limit == "depth"
    assert (len(calls_of(a)), len(calls_of(b))) == (2, 2)


async def test_a5_the_conversation_may_come_back_to_the_first(go: Go) -> None:
    b = b_says([to("a", "t2")])
    a = a_hands_over(b, replies=[[to("b")], "a says"])
    b.handoffs = [a]
    result = await go(App(), a, "hi")
    assert (result.text, result.agent) == ("a says", "a")
    assert len(calls_of(a)[1].messages) == 6


async def test_c4_after_a_handoff_the_other_agent_answers_from_then_on() -> None:
    b = b_says("b says", "b again")
    agent = a_hands_over(b)
    conversation = App().conversation(agent)
    await conversation.send("hi")
    assert conversation.agent == "b"
    result = await conversation.send("more")
    assert (result.text, result.agent, len(calls_of(agent))) == ("b again", "b", 1)
    assert calls_of(b)[1].messages == (System("You are b."), *conversation.messages[:-1])


async def test_c4_where_nothing_was_handed_over_the_first_goes_on_answering() -> None:
    conversation = App().conversation(a_hands_over(b_says(), replies=["one", "two"]))
    await conversation.send("hi")
    await conversation.send("more")
    assert conversation.agent == "a"


# --- nested ----------------------------------------------------------------------------------------------------------


async def test_m9_a_handoff_inside_an_agent_that_is_a_tool_answers_the_call(go: Go) -> None:
    agent = a_hands_over(b_says())
    outer = Agent(name="o", model=ScriptedModel([[ToolUse("a", {"input": "sub"}, "c1")], "done"]))
    outer.tools = [agent.as_tool()]
    result = await go(App(), outer, "hi")
    assert result.messages[2] == ToolMessage("b says", "c1", "a")
    assert (result.text, result.agent) == ("done", "o")


async def test_m9_a_handoff_inside_ctx_run_gives_the_answer_of_the_second(go: Go) -> None:
    inner: list[Result] = []
    agent = a_hands_over(b_says())

    class Outer(Agent):
        """Asks the first agent in its own step."""

        async def run(self, input: Any, ctx: Context) -> str:
            inner.append(await ctx.run(agent, "sub"))
            return f"{inner[0].agent}: {inner[0].text}"

    result = await go(App(), Outer(name="o"), "hi")
    assert (result.text, result.agent) == ("b: b says", "o")
    assert [message.text for message in inner[0].messages] == ["sub", "", GOES_ON, "b says"]
    assert [message.text for message in result.messages] == ["hi", "b: b says"]


async def test_a1_in_a_sequence_the_next_member_gets_the_answer_of_whoever_got_the_conversation(go: Go) -> None:
    c = Agent(name="c", model=ScriptedModel(["c says"]))
    result = await go(App(), sequence(a_hands_over(b_says()), c), "hi")
    assert calls_of(c)[0].messages[-1] == User("b says", name="b")
    assert (result.text, result.agent) == ("c says", "c")
    check_valid(result.messages)


async def test_a1_the_last_member_of_a_sequence_may_hand_over(go: Go) -> None:
    first = Agent(name="f", model=ScriptedModel(["f says"]))
    b = b_says()
    result = await go(App(), sequence(first, a_hands_over(b)), "hi")
    assert (result.text, result.agent) == ("b says", "b")
    assert calls_of(b)[0].messages[1:3] == (User("hi"), User("f says", name="f"))


# --- events, streams -------------------------------------------------------------------------------------------------


async def test_s8_events_tell_of_both_steps_side_by_side() -> None:
    events, _ = await collect(App().stream(a_hands_over(b_says()), "hi"))
    started = [event for event in events if isinstance(event, AgentStarted)]
    assert [(event.agent, event.via, event.parent) for event in started] == [
        ("a", "root", None),
        ("b", "handoff", None),
    ]
    assert started[0].step != started[1].step
    finished = [event for event in events if isinstance(event, AgentFinished)]
    assert [(event.agent, event.result and event.result.agent) for event in finished] == [("a", "a"), ("b", "b")]
    assert [event.turn for event in events if isinstance(event, ModelStarted)] == [1, 1]
    assert [event.call.name for event in events if isinstance(event, ToolFinished)] == ["transfer_to_b"]
    assert [event.outcome for event in events if isinstance(event, RunFinished)] == ["completed"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_s8_nested_in_another_step_both_have_that_one_as_their_parent() -> None:
    outer = Agent(name="o", model=ScriptedModel([[ToolUse("a", {"input": "sub"}, "c1")], "done"]))
    outer.tools = [a_hands_over(b_says()).as_tool()]
    events, _ = await collect(App().stream(outer, "hi"))
    started = [event for event in events if isinstance(event, AgentStarted)]
    assert [(event.agent, event.via) for event in started] == [("o", "root"), ("a", "tool"), ("b", "handoff")]
    assert [event.parent for event in started] == [None, started[0].step, started[0].step]


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("resets", [True, False])
async def test_s1_turn_n_of_the_second_is_the_nth_message_behind_those_carried_over(
    chunk: int | None, resets: bool
) -> None:
    uses = [ToolUse("look", {}, "l")]
    b = b_says(tools=[look])
    b.model = ScriptedModel([ChatReply("b looks.", uses), "b says"], chunk=chunk)
    agent = a_hands_over(b, tools=[look])
    agent.model = ScriptedModel([ChatReply("a looks.", uses), ChatReply("I pass.", [to("b")])], chunk=chunk)
    events, result = await collect(App().stream(agent, "hi", resets=resets))
    check_s1(events, result)
    turns = [(event.agent, event.turn) for event in events if isinstance(event, TextDelta)]
    assert list(dict.fromkeys(turns)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.parametrize("resets", [True, False])
async def test_s1_a_degraded_answer_of_the_second_is_its_own_turn(resets: bool) -> None:
    b = b_says(["b be", Boom()], hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await collect(App().stream(a_hands_over(b, replies=[["I pass.", to("b")]]), "hi", resets=resets))
    check_s1(events, result)
    assert result.messages[1].text == "I pass."
    assert result.text == ("sorry" if resets else "b be\n\nsorry")


async def test_s1_a_changed_answer_of_the_second_is_taken_back_and_said_anew() -> None:
    b = b_says(hooks=[{"after_run": lambda result, ctx: result.text.upper()}])
    events, result = await collect(App().stream(a_hands_over(b, replies=[["I pass.", to("b")]]), "hi"))
    check_s1(events, result)
    assert deltas(events)[0] == "I pass."
    assert result.text == "B SAYS"


async def test_s1_a_run_layer_that_changes_the_answer_changes_that_of_the_second() -> None:
    async def layer(call: Any, next: Any) -> Any:
        return (await next()).text.upper()

    app = App().use(run=layer)
    events, result = await collect(app.stream(a_hands_over(b_says(), replies=[["I pass.", to("b")]]), "hi"))
    steps = {event.agent: event.step for event in events if isinstance(event, AgentStarted)}
    assert fold(events) == {(steps["a"], 1): "I pass.", (steps["b"], 1): "B SAYS"}
    assert result.text == "B SAYS"


async def test_s6_text_is_that_of_the_second_alone_also_where_the_first_spoke_beside_the_transfer() -> None:
    text, result = await the_text(App(), a_hands_over(b_says(), replies=[["I pass.", to("b")]]))
    assert text == result.text == "b says"


async def test_s6_on_text_is_that_of_the_second_alone_also_where_the_first_spoke_beside_the_transfer() -> None:
    told: list[str] = []
    result = await App().run(a_hands_over(b_says(), replies=[["I pass.", to("b")]]), "hi", on_text=told.append)
    assert "".join(told) == result.text == "b says"


async def test_s6_of_a_chain_of_three_text_is_that_of_the_last() -> None:
    c = Agent(name="c", model=ScriptedModel(["c says"]))
    b = b_says(["b passes.", to("c", "t2")], handoffs=[c])
    text, _ = await the_text(App(), a_hands_over(b))
    assert text == "c says"


async def test_s6_in_an_append_only_stream_what_the_first_said_is_still_told_to_those_who_read_events() -> None:
    agent = a_hands_over(b_says(), replies=[["I pass.", to("b")]])
    events, _ = await collect(App().stream(agent, "hi", resets=False))
    assert deltas(events) == ["I pass.", "b says"]


async def test_s6_an_agent_with_handoffs_that_answers_itself_has_its_own_text() -> None:
    text, _ = await the_text(App(), a_hands_over(b_says(), replies=["a says"]))
    assert text == "a says"
    agent = a_hands_over(b_says(), replies=[["I look.", ToolUse("look", {}, "l1")], "a says"], tools=[look])
    text, _ = await the_text(App(), agent)
    assert text == "I look.\n\na says"


class Pausing:
    """A reply that waits in the middle until somebody has looked at what came out."""

    def __init__(self) -> None:
        self.said = anyio.Event()
        self.go_on = anyio.Event()

    def reply(self, call: Any) -> list[Any]:
        return ["one ", self, "two"]

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> None:
        self.said.set()
        await self.go_on.wait()

    async def pieces(self, agent: Any, as_text: bool) -> tuple[list[str], list[str]]:
        """What had come out in the middle, and all that came."""
        out: list[str] = []

        async def read() -> None:
            async with App().stream(agent, "hi") as stream:
                if as_text:
                    async for piece in stream.text():
                        out.append(piece)  # noqa: PERF401 - as they come
                else:
                    async for event in stream:
                        if isinstance(event, TextDelta):
                            out.append(event.text)  # noqa: PERF401 - as above

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await self.said.wait()
            await anyio.wait_all_tasks_blocked()
            half = list(out)
            self.go_on.set()
        return half, out


@pytest.mark.parametrize("as_text", [True, False])
async def test_s3_the_second_agent_is_streamed_as_it_speaks(as_text: bool) -> None:
    pausing = Pausing()
    agent = a_hands_over(b_says(pausing.reply))
    assert await pausing.pieces(agent, as_text) == (["one "], ["one ", "two"])


async def test_s6_the_text_of_one_with_handoffs_is_held_until_its_reply_asks_for_no_tool() -> None:
    pausing = Pausing()
    assert await pausing.pieces(a_hands_over(b_says(), replies=[pausing.reply]), True) == ([], ["one two"])


async def test_s3_where_text_can_be_taken_back_handoffs_hold_nothing() -> None:
    pausing = Pausing()
    assert await pausing.pieces(a_hands_over(b_says(), replies=[pausing.reply]), False) == (["one "], ["one ", "two"])


# --- structured answers ----------------------------------------------------------------------------------------------


class Invoice(BaseModel):
    """What is asked for."""

    total: int


async def test_t10_an_agent_with_an_output_type_may_hand_over(go: Go) -> None:
    result = await go(App(), a_hands_over(b_says(), output=Invoice), "hi")
    assert (result.text, result.output, result.agent) == ("b says", "b says", "b")


async def test_t10_the_answer_is_of_the_type_of_whoever_gives_it(go: Go) -> None:
    result = await go(App(), a_hands_over(b_says('{"total": 3}', output=Invoice)), "hi")
    assert result.output == Invoice(total=3)


# --- what is put together wrongly ------------------------------------------------------------------------------------


class NoAgent:
    """Has nothing to do with agents."""


@pytest.mark.parametrize("given", ["b", Agent, Agent(name="b"), None, 3, [3], [None], [NoAgent], [NoAgent()], [["b"]]])
def test_a5_what_is_no_list_of_agents_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the handoffs of a .*give (a list|agents)"):
        Agent(name="a", handoffs=given)


def test_a5_a_class_with_wrong_handoffs_is_refused_when_it_is_made() -> None:
    class Wrong(Agent):
        """Has a name in the place of a list."""

        handoffs = "b"

    with pytest.raises(ConfigurationError, match="the handoffs of Wrong"):
        Wrong()


@pytest.mark.parametrize("second", [Agent(name="b"), "b"])
def test_a5_two_handoffs_of_one_name_are_refused(second: Any) -> None:
    with pytest.raises(ConfigurationError, match="a has two handoffs to agents named 'b'"):
        Agent(name="a", handoffs=[Agent(name="b"), second])


async def test_a5_an_unknown_name_is_refused_with_the_names_there_are_and_nothing_is_asked(go: Go) -> None:
    agent = a_hands_over("bee")
    app = App(agents=[agent, b_says()])
    with pytest.raises(ConfigurationError, match=r"'a' has a handoff to 'bee'.*it has: a, b"):
        await go(app, agent, "hi")
    assert calls_of(agent) == []
    with pytest.raises(ConfigurationError, match=r"'bee'.*it has: a, b"):
        app.check()
    with pytest.raises(ConfigurationError, match="'bee'"):
        app.explain(agent)


async def test_a5_a_tool_that_has_the_name_of_a_transfer_is_refused_and_nothing_is_asked(go: Go) -> None:
    agent = a_hands_over(b_says(), tools=[tool(name="transfer_to_b")(look)])
    with pytest.raises(ConfigurationError, match="two tools named 'transfer_to_b'"):
        await go(App(), agent, "hi")
    assert calls_of(agent) == []
    with pytest.raises(ConfigurationError, match="two tools named 'transfer_to_b'"):
        App().check(agent)


def test_a5_two_names_that_make_one_transfer_are_refused() -> None:
    agent = a_hands_over(b_says(name="front desk"), b_says(name="front_desk"))
    with pytest.raises(ConfigurationError, match="two tools named 'transfer_to_front_desk'"):
        App().check(agent)


def test_a5_check_looks_at_those_who_may_get_the_conversation() -> None:
    c = Agent(name="c")
    agent = a_hands_over(b_says(handoffs=[c]))
    with pytest.raises(ConfigurationError, match="the agent 'c' has no model"):
        App().check(agent)
    App(model="demo").check(agent)


def test_a5_check_refuses_two_that_may_be_reached_under_one_name() -> None:
    agent = a_hands_over(b_says(handoffs=[Agent(name="a", model="demo")]))
    with pytest.raises(ConfigurationError, match="two agents that 'a' may reach are named 'a'"):
        App().check(agent)


def test_a5_check_takes_two_who_hand_over_to_each_other() -> None:
    b = b_says()
    a = a_hands_over(b)
    b.handoffs = [a]
    App().check(a)


async def test_a5_agents_that_are_tools_of_each_other_are_refused_behind_a_handoff_too(go: Go) -> None:
    b, c = b_says(), Agent(name="c", model="demo")
    b.tools, c.tools = [c.as_tool()], [b.as_tool()]
    agent = a_hands_over(b)
    with pytest.raises(ConfigurationError, match="tools of each other: b > c > b"):
        App().check(agent)
    with pytest.raises(ConfigurationError, match="tools of each other: b > c > b"):
        await go(App(), agent, "hi")


def test_h8_check_refuses_handoffs_of_one_who_owns_its_step() -> None:
    class Own(Agent):
        """Answers without turns."""

        async def run(self, input: Any, ctx: Context) -> str:
            return "x"

    with pytest.raises(ConfigurationError, match="handoffs= of 'a' are never offered"):
        App().check(Own(name="a", handoffs=[b_says()]))


def test_s10_explain_shows_the_transfers_among_the_tools() -> None:
    agent = a_hands_over(b_says(), tools=[look])
    (link,) = [link for link in App().explain(agent).links if link.kind == "tools"]
    assert link.name == "look, transfer_to_b"


async def test_m2_only_may_name_one_who_may_get_the_conversation(go: Go) -> None:
    seen: list[str] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append(call.agent.name)
        await next()

    await go(App().use(chat=layer, only="b"), a_hands_over(b_says()), "hi")
    assert seen == ["b"]


async def test_m2_only_may_name_a_transfer(go: Go) -> None:
    seen: list[str] = []

    async def layer(call: Any, next: Any) -> None:
        seen.append(call.name)
        await next()

    app = App().use(tool=layer, only="transfer_to_b")
    agent = a_hands_over(b_says(), replies=[[ToolUse("look", {}, "l1")], [to("b")]], tools=[look])
    await go(app, agent, "hi")
    assert seen == ["transfer_to_b"]


@pytest.mark.parametrize("only", ["a", "b", "look", "transfer_to_b"])
def test_m2_check_takes_an_only_that_names_whatever_is_reached_from_the_target(only: str) -> None:
    async def layer(call: Any, next: Any) -> None:
        await next()

    App().use(tool=layer, only=only).check(a_hands_over(b_says(), tools=[look]))


def test_m2_check_refuses_an_only_that_names_nothing_there() -> None:
    async def layer(call: Any, next: Any) -> None:
        await next()

    with pytest.raises(ConfigurationError, match="only='c'"):
        App().use(tool=layer, only="c").check(a_hands_over(b_says(), tools=[look]))


async def test_m2_only_that_names_nobody_who_may_be_reached_warns(go: Go) -> None:
    async def layer(call: Any, next: Any) -> None:
        await next()

    with pytest.warns(UserWarning, match="only='c'.*known: a, b, transfer_to_b"):
        await go(App().use(chat=layer, only="c"), a_hands_over(b_says()), "hi")


async def test_a5_the_settings_may_choose_a_transfer(go: Go) -> None:
    agent = a_hands_over(b_says(), settings=Settings(tool_choice="transfer_to_b"))
    App().check(agent)
    await go(App(), agent, "hi")
    assert calls_of(agent)[0].settings.tool_choice == "transfer_to_b"
    agent.settings = Settings(tool_choice="transfer_to_c")
    with pytest.raises(ConfigurationError, match="tool_choice='transfer_to_c', and it has no such tool"):
        App().check(agent)


async def test_k1_a_function_may_stand_in_for_a_transfer(go: Go) -> None:
    app, ran = App(), list[str]()

    def stand_in(reason: str = "") -> str:
        ran.append(reason)
        return "stood in"

    with app.override(tools={"transfer_to_b": stand_in}):
        result = await go(app, a_hands_over(b_says(), replies=[[to("b", reason="bees")]]), "hi")
    assert ran == ["bees"]
    assert (result.agent, result.messages[2].text) == ("b", "stood in")


async def test_a5_a_layer_that_begins_the_first_step_again_hands_over_once(go: Go) -> None:
    @repeats
    async def twice(call: Any, next: Any) -> None:
        await next()
        if call.via == "root":
            await next()

    b = b_says()
    result = await go(App().use(agent=twice), a_hands_over(b, replies=(TO_B, TO_B)), "hi")
    assert (result.text, len(b.model.calls)) == ("b says", 1)  # type: ignore[union-attr]  # a ScriptedModel
    assert [message.text for message in result.messages] == ["hi", "", GOES_ON, "b says"]


async def test_a5_who_has_the_conversation_is_found_by_whatever_way_it_came(go: Go) -> None:
    d = b_says("d says", "d again", name="d")
    b = b_says([to("d")])
    a = a_hands_over(b)
    b.handoffs = [a, d]  # and back
    conversation = App().conversation(a)
    assert (await conversation.send("hi")).text == "d says"
    assert ((await conversation.send("more")).text, conversation.agent) == ("d again", "d")
