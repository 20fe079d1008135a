"""Structured answers: an agent's `output=` type, from the request to `Result.output` (T10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from middlechain import (
    Agent,
    AgentStarted,
    App,
    Assistant,
    ChatReply,
    ConfigurationError,
    Context,
    Deny,
    Enforced,
    GuardrailDenied,
    LimitExceeded,
    Limits,
    ModelFinished,
    ModelStarted,
    ModelUnavailable,
    OutputError,
    Result,
    Rewrite,
    Settings,
    System,
    TextDelta,
    TextReset,
    ToolMessage,
    ToolUse,
    Usage,
    User,
    WrongReturn,
    guardrail,
    loop,
    parallel,
    sequence,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go
from .guarding import CANNED, against, found, noting, redacting
from .scenes import RESET, Boom, deltas, fold

pytestmark = pytest.mark.anyio

ONE = '{"total": 1}'
TWO = '{"total": 2}'


class Invoice(BaseModel):
    """What is asked for in most of these."""

    total: int


@dataclass
class Point:
    """A type of another kind."""

    x: int
    y: int = 0


def asking(*replies: Any, output: Any = Invoice, **options: Any) -> Agent:
    """An agent that answers with an invoice, or whatever else is asked for."""
    return Agent(**{"name": "a", "model": ScriptedModel(replies or [ONE]), "output": output, **options})


def calls_of(agent: Any) -> list[Any]:
    """The calls that the agent's model got."""
    calls: list[Any] = agent.model.calls
    return calls


def texts_in(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages]


@tool
async def look() -> str:
    """Look."""
    return "seen"


LOOK = ToolUse("look", {}, "l1")


# --- what is asked of the model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Invoice, ONE, Invoice(total=1)),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (list[int], "[1, 2]", [1, 2]),
        (Literal["red", "blue"], '"red"', "red"),
        (int, " 7 ", 7),
        (int | None, "null", None),
        (bool, "false", False),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
)
async def test_t10_the_answer_is_read_as_the_type_and_the_text_stays(
    output: Any, text: str, value: Any, go: Go
) -> None:
    result = await go(App(), asking(text, output=output), "hi")
    assert (result.output, result.text, result.message.text) == (value, text, text)
    assert type(result.output) is type(value)


@pytest.mark.parametrize("output", [None, str])
async def test_t10_without_a_type_the_output_is_the_text_and_nothing_is_asked_for(output: Any, go: Go) -> None:
    agent = asking(ONE, output=output, instructions="Be brief.")
    result = await go(App(), agent, "hi")
    assert result.output == ONE
    assert calls_of(agent)[0].settings.extra == {}
    assert calls_of(agent)[0].messages[0] == System("Be brief.")


@pytest.mark.parametrize("output", [Invoice, Point, dict[str, int]])
async def test_t10_of_an_object_the_settings_carry_the_schema_and_the_prompt_stays(output: Any, go: Go) -> None:
    agent = asking('{"total": 1, "x": 1}', output=output, instructions="Be brief.", output_retries=0)
    if output is Point:
        agent.model = ScriptedModel(['{"x": 1}'])
    await go(App(), agent, "hi")
    (call,) = calls_of(agent)
    asked = call.settings.extra["response_format"]
    assert asked["type"] == "json_schema"
    assert asked["json_schema"]["schema"]["type"] == "object"
    assert call.messages == (System("Be brief."), User("hi"))


async def test_t10_the_schema_is_named_after_the_type_and_says_what_is_required(go: Go) -> None:
    agent = asking()
    await go(App(), agent, "hi")
    asked = calls_of(agent)[0].settings.extra["response_format"]["json_schema"]
    assert asked["name"] == "Invoice"
    assert asked["schema"]["properties"] == {"total": {"type": "integer"}}
    assert asked["schema"]["required"] == ["total"]


async def test_t10_other_settings_stay_and_the_users_own_response_format_wins(go: Go) -> None:
    own = {"type": "json_object"}
    agent = asking(settings=Settings(temperature=0.5, extra={"response_format": own, "user": "me"}))
    result = await go(App(), agent, "hi")
    assert calls_of(agent)[0].settings == Settings(temperature=0.5, extra={"response_format": own, "user": "me"})
    assert result.output == Invoice(total=1)
    agent = asking(settings=Settings(temperature=0.5, extra={"user": "me"}))
    await go(App(), agent, "hi")
    settings = calls_of(agent)[0].settings
    assert (settings.temperature, sorted(settings.extra)) == (0.5, ["response_format", "user"])
    assert agent.settings.extra == {"user": "me"}


def instructed(kind: str) -> dict[str, Any]:
    if kind == "none":
        return {}
    return {"instructions": "Be brief." if kind == "str" else lambda ctx: "Be brief."}


@pytest.mark.parametrize("kind", ["none", "str", "callable"])
@pytest.mark.parametrize("output", [list[int], Literal[1, 2], int])
async def test_t10_where_the_root_is_no_object_the_prompt_carries_the_schema(kind: str, output: Any, go: Go) -> None:
    agent = asking("[1]" if output == list[int] else "1", output=output, **instructed(kind))
    await go(App(), agent, "hi")
    (call,) = calls_of(agent)
    prompt = call.messages[0].text
    assert call.settings.extra == {}
    assert prompt.startswith("Answer with JSON alone" if kind == "none" else "Be brief.\n\nAnswer with JSON alone")
    assert '"type"' in prompt
    assert call.messages[1:] == (User("hi"),)


async def test_h2_before_prompt_sees_what_is_asked_for_and_may_replace_it(go: Go) -> None:
    seen: list[str] = []

    def shorten(prompt: str, ctx: Context) -> str:
        seen.append(prompt)
        return "A list, please."

    agent = asking("[1]", output=list[int], instructions="Be brief.", hooks=[{"before_prompt": shorten}])
    await go(App(), agent, "hi")
    assert seen[0].startswith("Be brief.\n\nAnswer with JSON alone")
    assert calls_of(agent)[0].messages[0] == System("A list, please.")


async def test_t10_what_code_asks_by_ctx_chat_is_not_asked_for_the_type(go: Go) -> None:
    aside = ScriptedModel(lambda call: "fine")

    async def guard(text: str, ctx: Context) -> None:
        await ctx.chat("is it fine?", model=aside)

    @tool
    async def ask(ctx: Context) -> str:
        return (await ctx.chat("what is it?", model=aside)).text

    agent = asking([ToolUse("ask", {}, "k1")], ONE, tools=[ask], guardrails={"output": [guardrail("g")(guard)]})
    await go(App(), agent, "hi")
    assert aside.calls
    assert all("response_format" not in call.settings.extra for call in aside.calls)


# --- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [f"```json\n{ONE}\n```", f"```\n{ONE}\n```", f"\n {ONE}\n", f"```JSON\n{ONE}```\n", "```json\n" + ONE + "```"],
)
async def test_t10_an_answer_in_a_markdown_fence_is_read_and_the_text_stays_as_it_is(text: str, go: Go) -> None:
    agent = asking(text)
    result = await go(App(), agent, "hi")
    assert (result.output, result.text, len(calls_of(agent))) == (Invoice(total=1), text, 1)


@pytest.mark.parametrize(
    "text", ["", "nothing", '{"total": "many"}', "{}", "[1]", f"It is {ONE}", f"{ONE} {ONE}", '{"total": 1', "null"]
)
async def test_t10_what_does_not_fit_goes_back_to_the_model_with_what_is_wrong(text: str, go: Go) -> None:
    agent = asking(text, TWO, instructions="Be brief.")
    result = await go(App(), agent, "hi", history=[User("earlier"), Assistant("yes?")])
    first, second = calls_of(agent)
    *before, misfit, why = second.messages
    assert tuple(before) == first.messages
    assert misfit == Assistant(text)
    assert isinstance(why, User)
    assert why.text.startswith("The answer did not fit: ")
    assert why.text.endswith(". Answer again, with JSON alone.")
    assert result.output == Invoice(total=2)
    assert result.messages == (User("hi"), Assistant(TWO, (), None, "stop"))


async def test_t10_the_model_is_told_which_field_is_wrong(go: Go) -> None:
    agent = asking('{"total": "many"}', ONE)
    await go(App(), agent, "hi")
    assert calls_of(agent)[1].messages[-1].text.startswith("The answer did not fit: total: Input should be")


async def test_t10_a_second_misfit_goes_back_behind_the_first(go: Go) -> None:
    agent = asking("one", "two", ONE)
    result = await go(App(), agent, "hi")
    said = texts_in(calls_of(agent)[2].messages)
    assert (said[0], said[1], said[3], len(said)) == ("hi", "one", "two", 5)
    assert texts_in(result.messages) == ["hi", ONE]


async def test_t10_tools_may_run_before_the_answer_and_their_turns_stay(go: Go) -> None:
    agent = asking([LOOK], "nope", ONE, tools=[look])
    result = await go(App(), agent, "hi")
    assert texts_in(calls_of(agent)[2].messages)[:-1] == ["hi", "", "seen", "nope"]
    assert [type(message) for message in result.messages] == [User, Assistant, ToolMessage, Assistant]
    assert result.output == Invoice(total=1)


async def test_t10_tools_may_run_after_a_misfit_and_the_model_sees_all_in_the_order_in_which_it_was_said(
    go: Go,
) -> None:
    agent = asking("nope", [LOOK], ONE, tools=[look])
    result = await go(App(), agent, "hi")
    messages = calls_of(agent)[2].messages
    assert [type(message) for message in messages] == [User, Assistant, User, Assistant, ToolMessage]
    assert messages[1] == Assistant("nope")
    assert texts_in(result.messages) == ["hi", "", "seen", ONE]


async def test_t10_text_beside_a_tool_call_need_not_fit(go: Go) -> None:
    agent = asking(["I look.", LOOK], ONE, tools=[look])
    result = await go(App(), agent, "hi")
    assert texts_in(result.messages) == ["hi", "I look.", "seen", ONE]
    assert len(calls_of(agent)) == 2


@pytest.mark.parametrize("retries", [0, 1, None, 4])
async def test_t10_it_goes_back_as_often_as_output_retries_says_and_then_there_is_an_error(
    retries: int | None, go: Go
) -> None:
    allowed = 2 if retries is None else retries
    options = {} if retries is None else {"output_retries": retries}
    agent = asking(*["nope"] * allowed, ONE, **options)
    assert (await go(App(), agent, "hi")).output == Invoice(total=1)
    agent = asking(*["nope"] * (allowed + 1), ONE, **options)
    with pytest.raises(OutputError, match="the answer of 'a' is not of its output type") as raised:
        await go(App(), agent, "hi")
    assert len(calls_of(agent)) == allowed + 1
    assert isinstance(raised.value.__cause__, ValueError)
    assert (f"after {allowed} of {allowed} repairs" in str(raised.value)) == (allowed > 0)


async def test_t10_each_of_these_calls_is_a_turn_for_the_limits_and_all_have_the_same_number(go: Go) -> None:
    turns: list[int] = []

    async def layer(call: Any, next: Any) -> None:
        turns.append(call.ctx.turn)
        await next()

    app = App().use(chat=layer)
    result = await go(app, asking([LOOK], "nope", ONE, tools=[look]), "hi", limits=Limits(turns=3))
    assert (result.output, turns) == (Invoice(total=1), [1, 2, 2])
    with pytest.raises(LimitExceeded) as raised:
        await go(app, asking([LOOK], "nope", ONE, tools=[look]), "hi", limits=Limits(turns=2))
    assert raised.value.limit == "turns"
    assert texts_in(raised.value.result.messages) == ["hi", "", "seen"]


async def test_l4_usage_counts_all_attempts(go: Go) -> None:
    replies = [ChatReply(text, usage=Usage(input_tokens=10, output_tokens=1)) for text in ("nope", "no", ONE)]
    usage = (await go(App(), asking(*replies), "hi")).usage
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (30, 3, 3)


async def test_t10_a_validator_of_the_type_may_say_what_is_wrong(go: Go) -> None:
    class Even(BaseModel):
        """Takes even numbers only."""

        number: int

        def model_post_init(self, context: Any, /) -> None:
            if self.number % 2:
                raise ValueError("the number has to be even")

    agent = asking('{"number": 1}', '{"number": 2}', output=Even)
    assert (await go(App(), agent, "hi")).output == Even(number=2)
    assert "the number has to be even" in calls_of(agent)[1].messages[-1].text


# --- errors ----------------------------------------------------------------------------------------------------------


async def test_h7_on_error_gets_the_output_error_and_its_text_is_a_degraded_answer_without_output(go: Go) -> None:
    seen: list[Exception] = []

    def answer(error: Exception, ctx: Context) -> str:
        seen.append(error)
        return "no invoice"

    agent = asking("nope", output_retries=0, hooks=[{"on_error": answer}])
    result = await go(App(), agent, "hi")
    assert [type(error) for error in seen] == [OutputError]
    assert (result.text, result.output, result.degraded, result.error) == ("no invoice", None, True, seen[0])
    assert texts_in(result.messages) == ["hi", "no invoice"]


async def test_h7_on_error_may_return_a_value_of_the_type(go: Go) -> None:
    agent = asking("nope", output_retries=0, hooks=[{"on_error": lambda error, ctx: Invoice(total=0)}])
    result = await go(App(), agent, "hi")
    assert (result.output, result.degraded, result.text) == (Invoice(total=0), True, '{"total":0}')
    assert result.message.text == '{"total":0}'


async def test_h7_a_text_that_is_of_the_type_is_a_value_of_it(go: Go) -> None:
    agent = asking(Boom(), output=Literal["red", "blue"], hooks=[{"on_error": lambda error, ctx: "red"}])
    result = await go(App(), agent, "hi")
    assert (result.output, result.text) == ("red", '"red"')
    agent = asking(Boom(), output=Literal["red", "blue"], hooks=[{"on_error": lambda error, ctx: "sorry"}])
    result = await go(App(), agent, "hi")
    assert (result.output, result.text) == (None, "sorry")


async def test_h7_a_value_of_another_type_is_refused(go: Go) -> None:
    agent = asking(Boom(), hooks=[{"on_error": lambda error, ctx: Point(1)}])
    with pytest.raises(WrongReturn, match="a str or a value of the output type"):
        await go(App(), agent, "hi")


async def test_h7_none_lets_the_output_error_go_on(go: Go) -> None:
    agent = asking("nope", output_retries=0, hooks=[{"on_error": lambda error, ctx: None}])
    with pytest.raises(OutputError):
        await go(App(), agent, "hi")


# --- hooks, layers ---------------------------------------------------------------------------------------------------


async def test_h6_what_after_response_returns_is_read_anew(go: Go) -> None:
    seen: list[str] = []

    def change(response: str, ctx: Context) -> str:
        seen.append(response)
        return TWO

    result = await go(App(), asking("nope", ONE, hooks=[{"after_response": change}]), "hi")
    assert seen == [ONE]
    assert (result.output, result.text, result.message.text) == (Invoice(total=2), TWO, TWO)


async def test_h2_after_run_sees_the_value(go: Go) -> None:
    seen: list[Any] = []
    await go(App(), asking(hooks=[{"after_run": lambda result, ctx: seen.append((result.output, result.text))}]), "hi")
    assert seen == [(Invoice(total=1), ONE)]


AFTER_RUN: list[Any] = [
    lambda result, ctx: TWO,
    lambda result, ctx: result.replace(text=TWO),
    lambda result, ctx: Result(TWO),
    lambda result, ctx: result.replace(message=Assistant(TWO)),
]


@pytest.mark.parametrize("hook", AFTER_RUN)
async def test_t10_an_answer_that_after_run_changed_is_read_anew(hook: Any, go: Go) -> None:
    result = await go(App(), asking(hooks=[{"after_run": hook}]), "hi")
    assert (result.output, result.text, result.message.text) == (Invoice(total=2), TWO, TWO)


CHANGES: list[Any] = [
    lambda result: TWO,
    lambda result: Result(TWO),
    lambda result: result.replace(text=TWO),
    lambda result: result.replace(message=Assistant(TWO)),
]


def changing(change: Any) -> Any:
    async def layer(call: Any, next: Any) -> Any:
        return change(await next())

    return layer


@pytest.mark.parametrize("scope", ["agent", "run"])
@pytest.mark.parametrize("change", CHANGES)
async def test_t10_an_answer_that_a_layer_changed_is_read_anew(scope: str, change: Any, go: Go) -> None:
    app = App().use(**{scope: changing(change)})
    result = await go(app, asking(), "hi")
    assert (result.output, result.text) == (Invoice(total=2), TWO)


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_m7_a_layer_that_passes_everything_on_changes_no_output(scope: str, go: Go) -> None:
    seen: list[Any] = []

    async def layer(call: Any, next: Any) -> Any:
        result = await next()
        seen.append(result.output)
        return result

    result = await go(App().use(**{scope: layer}), asking(), "hi")
    assert seen == [result.output] == [Invoice(total=1)]


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_t10_a_layer_may_change_the_output_itself(scope: str, go: Go) -> None:
    app = App().use(**{scope: changing(lambda result: result.replace(output=Invoice(total=9)))})
    result = await go(app, asking(), "hi")
    assert (result.output, result.text) == (Invoice(total=9), ONE)


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_m4_a_layer_may_answer_in_its_place_with_json_text(scope: str, go: Go) -> None:
    async def instead(call: Any, next: Any) -> str:
        return TWO

    agent = asking()
    result = await go(App().use(**{scope: instead}), agent, "hi")
    assert (result.output, result.text, calls_of(agent)) == (Invoice(total=2), TWO, [])


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_m4_a_layer_may_answer_in_its_place_with_a_value(scope: str, go: Go) -> None:
    async def instead(call: Any, next: Any) -> Any:
        return Result("by the layer", Invoice(total=9))

    agent = asking()
    result = await go(App().use(**{scope: instead}), agent, "hi")
    assert (result.output, result.text, calls_of(agent)) == (Invoice(total=9), "by the layer", [])


@pytest.mark.parametrize("reply", [TWO, ChatReply(TWO)])
async def test_m4_a_chat_layer_may_answer_in_the_models_place(reply: Any, go: Go) -> None:
    async def instead(call: Any, next: Any) -> Any:
        return reply

    assert (await go(App().use(chat=instead), asking(), "hi")).output == Invoice(total=2)


async def test_m3_a_chat_layer_that_makes_a_misfit_of_the_reply_has_it_go_back(go: Go) -> None:
    made: list[str] = []

    async def spoil(call: Any, next: Any) -> Any:
        await next()
        made.append("nope" if not made else ONE)
        return made[-1]

    agent = asking(ONE, ONE)
    assert (await go(App().use(chat=spoil), agent, "hi")).output == Invoice(total=1)
    assert calls_of(agent)[1].messages[1] == Assistant("nope")


@pytest.mark.parametrize("where", ["after_response", "after_run", "agent"])
async def test_t10_an_answer_that_was_made_a_misfit_is_an_output_error(where: str, go: Go) -> None:
    app, agent = App(), asking()
    if where == "agent":
        app.use(agent=changing(lambda result: "nope"))
    else:
        agent.hooks = [{where: lambda value, ctx: "nope"}]
    with pytest.raises(OutputError, match="the answer of 'a' is not of its output type"):
        await go(app, agent, "hi")
    assert len(calls_of(agent)) == 1


async def test_m3_a_layer_further_out_sees_no_output_but_that_of_the_text(go: Go) -> None:
    seen: list[Any] = []

    async def outer(call: Any, next: Any) -> None:
        result = await next()
        seen.append((result.text, result.output))

    app = App().use(agent=[outer, changing(lambda result: TWO)])
    await go(app, asking(), "hi")
    assert seen == [(TWO, Invoice(total=2))]
    await go(App().use(agent=outer), asking(hooks=[{"after_run": lambda result, ctx: result.replace(text=TWO)}]), "hi")
    assert seen[1] == (TWO, Invoice(total=2))


async def once_more(call: Any, next: Any) -> Any:
    try:
        return await next()
    except OutputError:
        return await next()


@pytest.mark.parametrize("scope", ["agent", "run"])
async def test_m5_where_a_layer_begins_again_the_answer_may_go_back_as_often_again(scope: str, go: Go) -> None:
    agent = asking("1!", "2!", "3!", ONE, output_retries=1)
    result = await go(App().use(**{scope: once_more}), agent, "hi")
    assert result.output == Invoice(total=1)
    assert texts_in(calls_of(agent)[2].messages) == ["hi"]


# --- guards ----------------------------------------------------------------------------------------------------------


async def test_g6_a_misfit_is_judged_before_it_is_read_and_what_passes_goes_back(go: Go) -> None:
    log: list[str] = []
    agent = asking("nope", ONE, guardrails={"output": [noting(log)]})
    await go(App(), agent, "hi")
    assert log == ["nope", ONE]


async def test_g2_a_misfit_that_a_guard_blocks_ends_the_step_and_nothing_goes_back(go: Go) -> None:
    agent = asking("secret", ONE, guardrails={"output": [against("secret")]})
    result = await go(App(), agent, "hi")
    assert (result.text, result.blocked, result.output, len(calls_of(agent))) == (CANNED, True, None, 1)


async def test_g4_what_goes_back_of_a_misfit_is_what_the_guards_made_of_it(go: Go) -> None:
    agent = asking("secret things", ONE, guardrails={"output": [redacting("secret")]})
    result = await go(App(), agent, "hi")
    assert calls_of(agent)[1].messages[1] == Assistant("*** things")
    assert "secret" not in calls_of(agent)[1].messages[2].text
    assert result.output == Invoice(total=1)


async def test_t10_an_answer_that_a_guard_rewrote_is_read_as_it_is_then(go: Go) -> None:
    agent = asking(ONE, guardrails={"output": [against("1", lambda text: TWO)]})
    result = await go(App(), agent, "hi")
    assert (result.text, result.output) == (TWO, Invoice(total=2))


@pytest.mark.parametrize("when", ["reply", "final"])
async def test_g8_no_text_that_a_guard_blocked_is_in_an_error(when: Any, go: Go) -> None:
    guard = against("secret", Deny("no"), when=when)
    agent = asking("nope", '{"total": "secret"}', output_retries=1, guardrails={"output": [guard]})
    with pytest.raises((GuardrailDenied, OutputError)) as raised:
        await go(App(), agent, "hi")
    error: BaseException | None = raised.value
    while error is not None:
        assert "secret" not in f"{error} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


async def test_g8_not_even_the_error_for_what_a_hook_made_of_it_has_the_text(go: Go) -> None:
    agent = asking(hooks=[{"after_response": lambda response, ctx: '{"total": "secret"}'}])
    with pytest.raises(OutputError) as raised:
        await go(App(), agent, "hi")
    error: BaseException | None = raised.value
    while error is not None:
        assert "secret" not in f"{error} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("when", ["reply", "final"])
async def test_t10_the_output_of_a_blocked_result_is_none(when: Any, go: Go) -> None:
    agent = asking(guardrails={"output": [against("total", Enforced("no"), when=when)]})
    result = await go(App(), agent, "hi")
    assert (result.text, result.blocked, result.output) == (CANNED, True, None)
    assert found(result) == [("words", "enforced")]


async def test_t10_the_output_of_a_blocked_input_is_none(go: Go) -> None:
    result = await go(App(), asking(guardrails={"input": [against("hi")]}), "hi")
    assert (result.text, result.blocked, result.output) == (CANNED, True, None)


async def test_t10_the_output_of_a_degraded_answer_that_was_blocked_is_none(go: Go) -> None:
    guards = {"output": [against("7")]}
    for given in ("7", Invoice(total=7)):
        hook = {"on_error": lambda error, ctx, given=given: given}
        result = await go(App(), asking(Boom(), hooks=[hook], guardrails=guards), "hi")
        assert (result.text, result.degraded, result.blocked, result.output) == (CANNED, True, True, None)


async def test_t10_the_output_of_a_degraded_answer_that_a_guard_rewrote_says_what_the_text_says(go: Go) -> None:
    guards = {"output": [against("7", lambda text: text.replace("7", "0"))]}
    agent = asking(Boom(), hooks=[{"on_error": lambda error, ctx: Invoice(total=7)}], guardrails=guards)
    result = await go(App(), agent, "hi")
    assert (result.text, result.output) == ('{"total":0}', Invoice(total=0))


@pytest.mark.parametrize(
    "limits",
    [Limits(turns=0, on_exceed="stop"), Limits(chat_calls=0, on_exceed="stop"), Limits(seconds=0, on_exceed="stop")],
)
@pytest.mark.parametrize("whose", ["run", "agent"])
async def test_t10_the_output_of_a_stopped_result_is_none(limits: Limits, whose: str, go: Go) -> None:
    agent = asking(limits=limits if whose == "agent" else None)
    result = await go(App(), agent, "hi", limits=limits if whose == "run" else None)
    assert (result.stopped_by, result.output) == ("limit", None)


@pytest.mark.parametrize("limits", [Limits(turns=0), Limits(chat_calls=0), Limits(seconds=0)])
async def test_t10_the_output_of_the_partial_result_of_a_limit_is_none(limits: Limits, go: Go) -> None:
    with pytest.raises(LimitExceeded) as raised:
        await go(App(), asking(), "hi", limits=limits)
    assert raised.value.result.output is None


async def test_t10_the_output_of_one_that_was_nested_too_deeply_is_none(go: Go) -> None:
    inner: list[Result] = []

    @tool
    async def delegate(ctx: Context) -> str:
        inner.append(await ctx.run(asking(), "sub"))
        return "done"

    agent = Agent(model=ScriptedModel([[ToolUse("delegate", {}, "d1")], "done"]), tools=[delegate])
    await go(App(), agent, "hi", limits=Limits(depth=0, on_exceed="stop"))
    assert (inner[0].stopped_by, inner[0].output) == ("limit", None)


async def test_c1_the_output_of_one_that_ctx_stop_ended_is_none(go: Go) -> None:
    @tool
    async def stop(ctx: Context) -> str:
        ctx.stop("enough")
        return "stopped"

    result = await go(App(), asking([ONE, ToolUse("stop", {}, "s1")], tools=[stop]), "hi")
    assert (result.stopped_by, result.output) == ("stop", None)


# --- streams ---------------------------------------------------------------------------------------------------------


async def test_s1_a_misfit_is_taken_back_and_the_next_answer_takes_its_place_in_the_same_turn() -> None:
    events, result = await collect(App().stream(asking("nope", "no", ONE), "hi"))
    assert deltas(events) == ["nope", RESET, "no", RESET, ONE]
    assert {event.turn for event in events if isinstance(event, TextDelta | TextReset)} == {1}
    (step,) = [event.step for event in events if isinstance(event, AgentStarted)]
    assert fold(events) == {(step, 1): result.text}
    assert [event.turn for event in events if isinstance(event, ModelStarted)] == [1, 1, 1]
    replies = [event.reply and event.reply.text for event in events if isinstance(event, ModelFinished)]
    assert replies == ["nope", "no", ONE]


async def test_s1_turns_with_tools_before_and_after_a_misfit_keep_their_places() -> None:
    replies = [["I look.", LOOK], "nope", ["Once more.", ToolUse("look", {}, "l2")], ONE]
    events, result = await collect(App().stream(asking(*replies, tools=[look]), "hi"))
    answers = [message.text for message in result.messages if isinstance(message, Assistant)]
    assert answers == ["I look.", "Once more.", ONE]
    assert [fold(events)[events[1].step, turn] for turn in (1, 2, 3)] == answers


async def test_s1_the_answer_that_fits_at_once_is_not_taken_back() -> None:
    agent = asking()
    agent.model = ScriptedModel([ONE], chunk=4)
    events, _ = await collect(App().stream(agent, "hi"))
    assert RESET not in deltas(events)
    assert len(deltas(events)) == 3


async def test_s1_a_degraded_answer_takes_the_place_of_a_misfit() -> None:
    agent = asking("nope", output_retries=0, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await collect(App().stream(agent, "hi"))
    assert list(fold(events).values()) == [result.text] == ["sorry"]


@pytest.mark.parametrize("layers", [{}, {"agent": changing(lambda result: TWO)}])
async def test_s6_an_append_only_stream_has_nothing_of_a_misfit(layers: Any) -> None:
    app = App().use(**layers) if layers else App()
    answer = TWO if layers else ONE
    agent = asking("nope", "no", ONE)
    events, result = await collect(app.stream(agent, "hi", resets=False))
    assert deltas(events) == [answer] == [result.text]
    agent = asking("nope", "no", ONE)
    async with app.stream(agent, "hi") as stream:
        assert [piece async for piece in stream.text()] == [answer]


async def test_s6_on_text_has_nothing_of_a_misfit() -> None:
    told: list[str] = []
    await App().run(asking("nope", ONE), "hi", on_text=told.append)
    assert told == [ONE]


async def test_s6_a_degraded_answer_after_a_misfit_is_all_that_an_append_only_stream_has() -> None:
    agent = asking("nope", output_retries=0, hooks=[{"on_error": lambda error, ctx: "sorry"}])
    events, result = await collect(App().stream(agent, "hi", resets=False))
    assert deltas(events) == ["sorry"] == [result.text]


async def test_s6_text_beside_a_tool_call_is_not_held_by_the_type() -> None:
    agent = asking(["I look.", LOOK], "nope", ONE, tools=[look])
    events, result = await collect(App().stream(agent, "hi", resets=False))
    assert deltas(events) == ["I look.", ONE]
    assert texts_in(result.messages) == ["hi", "I look.", "seen", ONE]


# --- owned steps, flows, nested steps, conversations -----------------------------------------------------------------


class Owned(Agent):
    """Owns its step, and returns what it was made with."""

    given: Any = ONE

    async def run(self, input: Any, ctx: Context) -> Any:
        return self.given


def owned(given: Any, **options: Any) -> Owned:
    agent = Owned(name="a", output=Invoice, **options)
    agent.given = given
    return agent


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (ONE, Invoice(total=1)),
        (Result(TWO), Invoice(total=2)),
        (Result("nine", Invoice(total=9)), Invoice(total=9)),
    ],
)
async def test_h8_what_an_owned_step_returns_is_read_too(given: Any, value: Any, go: Go) -> None:
    assert (await go(App(), owned(given), "hi")).output == value


async def test_h8_what_an_owned_step_returns_does_not_go_back(go: Go) -> None:
    with pytest.raises(OutputError):
        await go(App(), owned("nope"), "hi")


async def test_h8_nothing_is_added_to_what_an_owned_step_sends(go: Go) -> None:
    class Planning(Agent):
        """Plans in words before it answers."""

        output = Invoice

        async def run(self, input: Any, ctx: Context) -> str:
            await ctx.chat("plan in words")
            return ONE

    model = ScriptedModel(["first, then"])
    assert (await go(App(), Planning(model=model), "hi")).output == Invoice(total=1)
    assert model.calls[0].messages == (User("plan in words"),)
    assert model.calls[0].settings == Settings()


async def test_t10_a_nested_step_gives_its_value(go: Go) -> None:
    values: list[Any] = []

    @tool
    async def delegate(ctx: Context) -> str:
        values.append((await ctx.run(asking("nope", ONE), "sub")).output)
        return "done"

    outer = Agent(model=ScriptedModel([[ToolUse("delegate", {}, "d1")], "done"]), tools=[delegate])
    result = await go(App(), outer, "hi")
    assert (values, result.output) == ([Invoice(total=1)], "done")


async def test_a1_the_next_member_of_a_sequence_gets_the_text(go: Go) -> None:
    second = Agent(name="b", model=ScriptedModel(["b says"]))
    result = await go(App(), sequence(asking("nope", ONE), second), "hi")
    assert calls_of(second)[0].messages == (User("hi"), User(ONE, name="a"))
    assert (result.text, result.output) == ("b says", "b says")


async def test_a1_the_output_of_a_sequence_is_that_of_its_last_member(go: Go) -> None:
    first = Agent(name="b", model=ScriptedModel(["b says"]))
    result = await go(App(), sequence(first, asking("nope", ONE)), "hi")
    assert (result.text, result.output) == (ONE, Invoice(total=1))
    assert texts_in(result.messages) == ["hi", "b says", ONE]


async def test_a2_merge_sees_the_values(go: Go) -> None:
    def merge(results: Any, ctx: Context) -> Result:
        total = sum(result.output.total for result in results)
        return Result(f"{total} in all", Invoice(total=total))

    result = await go(App(), parallel(asking(ONE), asking(TWO, name="b"), merge=merge), "hi")
    assert (result.text, result.output) == ("3 in all", Invoice(total=3))


async def test_a3_the_output_of_a_loop_is_that_of_its_last_pass(go: Go) -> None:
    result = await go(App(), loop(asking(ONE, TWO), max_iterations=2), "hi")
    assert (result.text, result.output) == (TWO, Invoice(total=2))


async def test_s1_a_misfit_of_a_member_is_taken_back_in_its_own_step() -> None:
    second = Agent(name="b", model=ScriptedModel(["b says"]))
    events, _ = await collect(App().stream(sequence(asking("nope", ONE), second), "hi"))
    assert list(fold(events).values()) == [ONE, "b says"]


async def test_c4_a_conversation_keeps_the_text_of_answers_and_nothing_of_misfits() -> None:
    agent = asking("nope", ONE, "no", TWO)
    conversation = App().conversation(agent)
    assert (await conversation.send("one")).output == Invoice(total=1)
    assert (await conversation.send("two")).output == Invoice(total=2)
    assert texts_in(conversation.messages) == ["one", ONE, "two", TWO]
    assert texts_in(calls_of(agent)[2].messages) == ["one", ONE, "two"]


async def test_c4_an_output_error_leaves_nothing_in_a_conversation() -> None:
    conversation = App().conversation(asking("nope", ONE, output_retries=0))
    with pytest.raises(OutputError):
        await conversation.send("one")
    assert conversation.messages == ()
    assert (await conversation.send("two")).output == Invoice(total=1)


# --- what is put together wrongly ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["Invoice", 3, {"total": int}, lambda: None, object(), print])
def test_t10_what_is_no_type_is_refused_when_the_agent_is_made(output: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the output of a is .* of which no JSON schema can be made"):
        Agent(name="a", output=output)


@pytest.mark.parametrize("retries", [-1, 1.5, "2", None, True])
def test_t10_what_is_no_number_of_retries_is_refused_when_the_agent_is_made(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the output_retries of a are .* give a whole number from 0 up"):
        Agent(name="a", output=Invoice, output_retries=retries)


def test_t10_a_class_may_have_both_as_attributes() -> None:
    class Asking(Agent):
        """As a class."""

        output = list[int]
        output_retries = 0

    agent = Asking(model=ScriptedModel(["[1]"]))
    assert App().run_sync(agent, "hi").output == [1]
    with pytest.raises(OutputError):
        App().run_sync(Asking(model=ScriptedModel(["one"])), "hi")


@pytest.mark.anyio
async def test_h7_a_degraded_value_that_a_guard_makes_unfit_is_no_output(go: Go) -> None:
    def hide(text: str, ctx: Any) -> Rewrite:
        return Rewrite("hidden")

    agent = Agent(
        name="a",
        model=ScriptedModel([ModelUnavailable("down")]),
        output=list[int],
        hooks=[{"on_error": lambda error, ctx: [7]}],
        guardrails={"output": [hide]},
    )
    result = await go(App(), agent, "hi")
    assert (result.text, result.output, result.degraded) == ("hidden", None, True)
