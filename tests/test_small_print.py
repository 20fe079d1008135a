"""The small print of several clauses: refusals, words and last moments that have no file of their own."""

from __future__ import annotations

import asyncio
import base64
import copy
import pickle
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator

import middlechain
from middlechain import (
    Agent,
    AgentHooks,
    App,
    Assistant,
    ChatCall,
    ChatReply,
    ConfigurationError,
    Context,
    ContractError,
    File,
    Layers,
    LimitExceeded,
    Limits,
    NextCalledAgain,
    NextCalledLate,
    Result,
    Text,
    TextDelta,
    ToolCall,
    ToolError,
    ToolMessage,
    ToolResult,
    ToolUse,
    User,
    messages,
    registry,
    repeats,
    tool,
)
from middlechain.testing import ScriptedModel, collect

from .conftest import Go


class Boom(Exception):
    """Raised by a layer or a hook."""


@tool
async def ping() -> str:
    return "pong"


class Polite(Agent):
    """Overrides every hook and calls the one above it, as in any class."""

    def before_run(self, input: Any, ctx: Context) -> Any:
        return super().before_run(input, ctx)

    def before_prompt(self, prompt: str, ctx: Context) -> Any:
        return super().before_prompt(prompt, ctx)

    def before_tool(self, call: ToolCall, ctx: Context) -> Any:
        return super().before_tool(call, ctx)

    def after_tool(self, result: ToolResult, ctx: Context) -> Any:
        return super().after_tool(result, ctx)

    def after_response(self, response: str, ctx: Context) -> Any:
        return super().after_response(response, ctx)

    def after_run(self, result: Result, ctx: Context) -> Any:
        return super().after_run(result, ctx)

    def on_error(self, error: Exception, ctx: Context) -> Any:
        return super().on_error(error, ctx)


@pytest.mark.anyio
async def test_h3_every_hook_can_call_super_and_keeps_what_there_is(go: Go) -> None:
    agent = Polite(model=ScriptedModel([[ToolUse("ping")], "done", Boom()]), tools=[ping])
    assert (await go(App(), agent, "hi")).text == "done"
    with pytest.raises(Boom):
        await go(App(), agent, "hi")


async def _a_number(ctx: Context) -> Any:
    return 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": 3}, r"the name of an agent is 3; give a str"),
        ({"settings": {}}, r"the settings of Agent are \{\}; give Settings"),
        ({"limits": 3}, r"the limits of Agent are 3; give Limits"),
        ({"instructions": 3}, r"the instructions of Agent are 3; give text"),
        ({"hooks": "x"}, r"the hooks of Agent are 'x'; give a list"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_when_the_agent_is_built(options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Agent(**options)


def test_m12_an_observer_in_an_agents_middleware_is_refused() -> None:
    class Watcher:
        def on_event(self, event: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"has an on_event\(\); give that bundle to app.use\(\)"):
        Agent(middleware=[Watcher()])


@pytest.mark.anyio
async def test_instructions_must_give_text(go: Go) -> None:
    agent = Agent(name="a", model=ScriptedModel(["x"]), instructions=_a_number)
    with pytest.raises(ConfigurationError, match="the instructions '_a_number' of a gave 3; return a str"):
        await go(App(), agent, "hi")


@pytest.mark.anyio
async def test_instructions_of_a_class_may_be_a_function_of_ctx_or_a_method(go: Go) -> None:
    class Plain(Agent):
        model = ScriptedModel(lambda call: call.messages[0].text)
        instructions = lambda ctx: f"plain {ctx.run_id}"  # noqa: E731

    class Method(Plain):
        def instructions(self, ctx: Context) -> str:  # type: ignore[override]
            return f"{type(self).__name__} {ctx.run_id}"

    assert (await go(App(), Plain, "hi", run_id="r")).text == "plain r"
    assert (await go(App(), Method, "hi", run_id="r")).text == "Method r"


def test_an_app_says_what_it_holds() -> None:
    assert repr(App(name="desk", agents=[Agent(name="a")])) == "App(name='desk', agents=[a])"


def test_m2_only_is_given_in_one_place() -> None:
    with pytest.raises(ConfigurationError, match=r"app.use\(\) has an only= and so have its Layers"):
        App().use(Layers(chat=print, only="a"), only="b")


def test_o1_a_prefix_without_the_name_it_needs_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the model 'openai' lacks what 'openai' needs .*write it as openai:NAME"
    ):
        registry.model_named("openai", {})


def test_o1_further_prefixes_come_from_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("echo", "tests.test_small_print:Echo", "middlechain.models")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    agent = Agent(model="echo:loud")
    assert App().run_sync(agent, "hi").text == "loud says hi"
    assert App().run_sync(Agent(model="echo"), "hi").text == "quiet says hi"


class Echo:
    """A model of another package."""

    def __init__(self, name: str = "quiet") -> None:
        self.name = name

    async def chat(self, call: Any) -> ChatReply:
        return ChatReply(f"{self.name} says {call.messages[-1].text}")


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "9"])
def test_t6_a_limit_that_is_no_number_of_characters_is_refused(most: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is no number of characters; give one from 1 up"):
        tool(max_result_chars=most)(print)


@pytest.mark.anyio
async def test_h4_a_hook_may_give_a_tool_objects_that_have_no_json_form(go: Go) -> None:
    class Handle:
        """Something that only code can hold."""

    handle = Handle()

    @tool
    async def use(what: Any) -> str:
        return f"the very handle: {what is handle}"

    def before_tool(call: ToolCall, ctx: Context) -> ToolCall:
        return call.replace(args={"what": handle})

    agent = Agent(
        model=ScriptedModel([[ToolUse("use", {"what": "a"})], "end"]), tools=[use], hooks=[{"before_tool": before_tool}]
    )
    result = await go(App(), agent, "hi")
    assert result.messages[2].text == "the very handle: True"


def _only_one(value: int) -> int:
    return {1: 1}[value]


@pytest.mark.anyio
async def test_t5_a_validator_that_crashes_stops_the_call_and_not_the_run(go: Go) -> None:
    @tool
    async def use(what: Annotated[int, AfterValidator(_only_one)]) -> str:
        return "used"

    model = ScriptedModel([[ToolUse("use", {"what": 2}), ToolUse("use", {"what": 1})], "end"])
    result = await go(App(), Agent(model=model, tools=[use]), "hi")
    refused, used = (m.text for m in result.messages[2:4])
    assert "did not run: the arguments could not be checked (KeyError). Correct" in refused
    assert used == "used"


@pytest.mark.anyio
async def test_t5_a_call_where_no_tools_may_be_called_is_told_so(go: Go) -> None:
    model = ScriptedModel([[ToolUse("ping")], "done"])
    await go(App(), Agent(model=model), "hi")
    assert model.calls[1].messages[-1].text == (
        "There is no tool 'ping': no tools may be called now. Answer without one."
    )


def test_h9_a_tool_call_equals_one_that_says_the_same_and_a_tool_result_is_immutable() -> None:
    assert ToolCall("a", {"x": 1}) == ToolCall("a", {"x": 1})
    assert ToolCall("a", {"x": 1}) != ToolCall("a", {"x": 2})
    assert ToolCall("a") != "a"
    result = ToolResult("a", {"x": [1]}, "text")
    result.args["x"].append(2)
    assert result.args == {"x": [1]}
    with pytest.raises(AttributeError, match="immutable; return what should replace its text"):
        result.output = "other"  # type: ignore[misc]


@pytest.mark.anyio
async def test_s1_an_empty_delta_is_not_sent_on() -> None:
    agent = Agent(model=ScriptedModel([[TextDelta(""), "a", TextDelta("")]]))
    events, _ = await collect(App().stream(agent, "hi"))
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("a")]


@pytest.mark.anyio
async def test_s5_a_stream_that_was_never_entered_can_be_closed() -> None:
    stream = App().stream(Agent(model=ScriptedModel(["x"])), "hi")
    await stream.aclose()
    with pytest.raises(ContractError, match="the run has not ended"):
        stream.result  # noqa: B018 - reading it is what raises


@pytest.mark.anyio
async def test_t1_the_tools_of_a_reply_do_not_run_after_ctx_stop(go: Go) -> None:
    async def stop(call: Any, next: Any) -> Any:
        call.ctx.stop("enough")
        return await next()

    agent = Agent(model=ScriptedModel([["so far", ToolUse("ping")]]), tools=[ping])
    result = await go(App().use(chat=stop), agent, "hi")
    assert (result.text, result.stopped_by, result.finish_reason) == ("so far", "stop", "stop")
    assert result.messages == (User("hi"), Assistant("so far", finish_reason="stop"))


@pytest.mark.anyio
async def test_h3_a_result_with_messages_of_its_own_is_completed_with_the_rest(go: Go) -> None:
    own = (User("q"), Assistant("first"), Assistant("last"))

    def after_run(result: Result, ctx: Context) -> Result:
        return Result("last", messages=own)

    agent = Agent(name="a", model=ScriptedModel(["x"]), hooks=[{"after_run": after_run}])
    result = await go(App(), agent, "hi", run_id="r")
    assert (result.messages, result.agent, result.run_id, result.finish_reason) == (own, "a", "r", "stop")


@pytest.mark.anyio
async def test_s7_a_reset_that_cannot_be_sent_is_the_failure_of_that_attempt() -> None:
    async def stubborn(delta: Any) -> None:
        raise Boom(type(delta).__name__)

    async def retry(call: Any, next: Any) -> Any:
        with pytest.raises(ValueError, match="once"):
            await next()
        with pytest.raises(Boom, match="TextReset"):
            await next(call.replace(send=stubborn))
        return await next()

    agent = Agent(model=ScriptedModel([ValueError("once"), "twice"]))
    assert (await collect(App().use(chat=retry).stream(agent, "hi"))).result.text == "twice"


@pytest.mark.anyio
@pytest.mark.parametrize("scope", ["agent", "chat"])
async def test_m5_a_next_that_ends_after_its_layer_changes_nothing(scope: str) -> None:
    go_on, ended = anyio.Event(), anyio.Event()

    async def model(call: Any) -> str:
        await go_on.wait()
        return "late"

    async with anyio.create_task_group() as tasks:

        async def hasty(call: Any, next: Any) -> Any:
            async def wait_for_it() -> None:
                await next()
                ended.set()

            tasks.start_soon(wait_for_it)
            await anyio.wait_all_tasks_blocked()
            return "hasty"

        app = App().use(**{scope: hasty})
        with pytest.raises(NextCalledLate):
            await app.run(Agent(model=ScriptedModel(model)), "hi")
        go_on.set()
        await ended.wait()


@pytest.mark.anyio
@pytest.mark.parametrize("layers", [[], [lambda call, go_on: go_on()]], ids=["no layer", "a layer"])
async def test_t9_a_tool_that_cancels_its_task_and_ends_before_it_notices_harms_nobody(
    go: Go, anyio_backend: str, layers: list[Any]
) -> None:
    if anyio_backend == "trio":
        pytest.skip("trio's tasks cannot cancel themselves")

    @tool
    async def hasty() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done in haste"

    both = anyio.Event()

    @tool
    async def slow() -> str:
        both.set()
        await anyio.wait_all_tasks_blocked()
        return "slow"

    agent = Agent(model=ScriptedModel([[ToolUse("hasty"), ToolUse("slow")], "end"]), tools=[hasty, slow])
    app = App().use(tool=layers) if layers else App()
    result = await go(app, agent, "hi")
    assert [m.text for m in result.messages] == ["hi", "", "done in haste", "slow", "end"]


@pytest.mark.anyio
async def test_t9_a_hook_of_one_of_several_calls_that_raises_a_cancellation_of_its_own_has_failed(
    go: Go, anyio_backend: str
) -> None:
    if anyio_backend == "trio":
        pytest.skip("trio does not let code make a Cancelled of its own")

    def before_tool(call: ToolCall, ctx: Context) -> None:
        raise anyio.get_cancelled_exc_class()

    agent = Agent(
        model=ScriptedModel([[ToolUse("ping"), ToolUse("ping")]]), tools=[ping], hooks=[{"before_tool": before_tool}]
    )
    with pytest.raises(anyio.get_cancelled_exc_class()):
        await go(App(), agent, "hi")


@pytest.mark.anyio
async def test_m11_a_run_that_is_dropped_runs_its_finally() -> None:
    """Closing the coroutine of a run is one more way of leaving."""
    log: list[str] = []

    class Forever:
        def __await__(self) -> Any:
            yield None

    async def layer(call: Any, next: Any) -> Any:
        try:
            await Forever()
        finally:
            log.append("left")

    running = App().use(chat=layer).run(Agent(model=ScriptedModel(["x"])), "hi")
    running.send(None)
    running.close()
    assert log == ["left"]


@pytest.mark.anyio
async def test_m5_two_next_at_once_are_refused_also_where_nothing_ever_waits(go: Go, anyio_backend: str) -> None:
    if anyio_backend == "trio":
        pytest.skip("gather is asyncio's")

    @repeats
    async def both(call: Any, next: Any) -> Any:
        await asyncio.gather(next(), next())

    with pytest.raises(NextCalledAgain, match="while another"):
        await go(App().use(chat=both), Agent(model=ScriptedModel(["a", "b"])), "hi")


@pytest.mark.anyio
async def test_m5_a_next_that_was_cancelled_before_it_began_was_not_forgotten(go: Go, anyio_backend: str) -> None:
    if anyio_backend == "trio":
        pytest.skip("wait_for is asyncio's")

    async def impatient(call: Any, next: Any) -> Any:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(next(), 0)
        return "no time" if call.input == "hi" else await next()

    agent = Agent(model=ScriptedModel(["done"]))
    assert (await go(App().use(agent=impatient), agent, "hi")).text == "no time"
    assert (await go(App().use(agent=impatient), agent, "again")).text == "done"


@pytest.mark.anyio
async def test_t7_ids_that_are_made_up_are_new_in_the_whole_history(go: Go) -> None:
    model = ScriptedModel(
        lambda call: (
            "done" if isinstance(call.messages[-1], ToolMessage) else [ToolUse("ping"), ToolUse("ping", id="x")]
        )
    )
    agent = Agent(model=model, tools=[ping])
    first = await go(App(), agent, "hi")
    second = await go(App(), agent, "again", history=first.messages)
    ids = [use.id for m in (*first.messages, *second.messages) if isinstance(m, Assistant) for use in m.tool_calls]
    assert ids == ["call_1_0", "x", "call_1_0_", "x"]
    again = await go(App(), agent, "again", history=first.messages)
    assert again.messages == second.messages


@pytest.mark.anyio
async def test_c1_calls_by_code_have_ids_too(go: Go) -> None:
    seen: list[str] = []

    async def watch(call: ToolCall, next: Any) -> Any:
        seen.append(call.id)

    async def ask(input: Any, ctx: Context) -> None:
        await ctx.call_tool("ping")
        await ctx.call_tool("ping")

    agent = Agent(model=ScriptedModel(["x"]), tools=[ping], hooks=[{"before_run": ask}])
    with pytest.raises(Exception, match="without a successful"):
        await go(App().use(tool=watch), agent, "hi")
    assert seen == ["ctx_1"]


@pytest.mark.anyio
async def test_m2_a_plain_function_among_the_tools_limits_a_layer_to_that_tool(go: Go) -> None:
    called: list[Any] = []

    def wipe(path: str) -> str:
        called.append(path)
        return "wiped"

    def other() -> str:
        return "other"

    async def watch(call: ToolCall, next: Any) -> Any:
        called.append(f"layer of {call.name}")
        return await next()

    model = ScriptedModel([[ToolUse("other")], [ToolUse("wipe", {"path": "p"})], "done"])
    await go(App().use(tool=watch, only=wipe), Agent(model=model, tools=[wipe, other]), "hi")
    assert called == ["layer of wipe", "p"]
    with pytest.raises(ConfigurationError, match="only= is empty"):
        App().use(tool=watch, only=[])


@pytest.mark.anyio
async def test_section_1_hooks_may_be_set_on_an_agent_that_was_built(go: Go) -> None:
    class Late(Agent):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.before_run = lambda input, ctx: "changed"  # type: ignore[method-assign]

    agent = Late(model=ScriptedModel(lambda call: call.messages[-1].text))
    assert (await go(App(), agent, "hi")).text == "changed"
    twin = copy.copy(agent)
    twin.before_run = lambda input, ctx: "twin"  # type: ignore[method-assign]
    assert (await go(App(), twin, "hi")).text == "twin"
    assert (await go(App(), agent, "hi")).text == "changed"


def test_section_1_what_an_agent_was_built_of_cannot_be_changed_in_place() -> None:
    given = [ping]
    agent = Agent(tools=given)
    assert agent.tools == (ping,)
    assert Agent(tools=iter([ping])).tools == (ping,)


@pytest.mark.anyio
async def test_l2_the_result_so_far_holds_the_last_reply_whichever_limit_was_reached(go: Go) -> None:
    for limits in ({"turns": 1}, {"tool_calls": 0}):
        for on_exceed in ("stop", "raise"):
            agent = Agent(model=ScriptedModel([["let me look", ToolUse("ping")]]), tools=[ping])
            options: dict[str, Any] = {**limits, "on_exceed": on_exceed}
            try:
                result = await go(App(), agent, "hi", limits=Limits(**options))
            except LimitExceeded as error:
                result = error.result
            assert result.messages == (User("hi"), Assistant("let me look", finish_reason="limit"))


def test_section_1_openais_file_and_refusal_parts_are_read() -> None:
    data = base64.b64encode(b"x").decode()
    parts = [
        {"type": "file", "file": {"file_id": "f1", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_data": f"data:text/plain;base64,{data}", "filename": "a.txt"}},
        {"type": "file", "file": {"file_data": data}},
        {"type": "refusal", "refusal": "no"},
    ]
    (message,) = messages.load([{"role": "user", "content": parts}])
    assert message.content == (
        File(id="f1", name="a.pdf"),
        File(b"x", "a.txt", "text/plain"),
        File(b"x"),
        Text("no"),
    )


def test_h9_tool_results_and_calls_copy_and_pickle_by_value() -> None:
    result = ToolResult("a", {"x": 1}, "out", True, "c")
    assert pickle.loads(pickle.dumps(result)) == copy.copy(result) == result
    assert result != ToolResult("a", {"x": 1}, "other", True, "c")
    call = ToolCall("a", {}, "c", None, "a problem")
    assert copy.deepcopy(call) == call
    assert call != ToolCall("a", {}, "c")


@pytest.mark.anyio
async def test_section_1_an_agent_class_is_made_once_in_a_run(go: Go) -> None:
    made: list[Agent] = []

    class Counted(Agent):
        model = ScriptedModel(["x"])

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    async def keep(call: Any, next: Any) -> Any:
        return await next()

    await go(App(agents=[Counted]).use(chat=keep, only="Counted"), Counted, "hi")
    assert len(made) == 1

    class Needy(Agent):
        def __init__(self, what: str) -> None:
            super().__init__()

    with pytest.raises(ConfigurationError, match=r"Needy cannot be made without arguments .*give an object of it"):
        await go(App(), Needy, "hi")


def test_a_hook_class_in_place_of_an_object_is_refused() -> None:
    class Watching:
        def on_event(self, event: Any) -> None: ...

        def after_response(self, response: str, ctx: Context) -> None: ...

    assert Agent(hooks=[Watching()]).hooks  # a bundle may have hooks as well
    with pytest.raises(ConfigurationError, match=r"the class AgentHooks; give an object of it: AgentHooks\(\)"):
        Agent(hooks=[AgentHooks])


class Data(Agent):
    """Named like a hook, but no method."""

    after_hours = True


@pytest.mark.anyio
async def test_m3_a_call_made_from_messages_alone_keeps_the_model_and_the_stream(go: Go) -> None:
    async def ask_otherwise(call: ChatCall, next: Any) -> Any:
        return await next(ChatCall((User("otherwise"),)))

    model = ScriptedModel(lambda call: [call.messages[-1].text, " it is"])
    assert (await go(App().use(chat=ask_otherwise), Data(model=model), "hi")).text == "otherwise it is"


@pytest.mark.anyio
async def test_m6_a_tool_error_that_leaves_a_layer_says_how_to_refuse(go: Go) -> None:
    async def refuse(call: ToolCall, next: Any) -> Any:
        raise ToolError("not you")

    agent = Agent(model=ScriptedModel([[ToolUse("ping")]]), tools=[ping])
    with pytest.raises(ToolError, match="not you") as caught:
        await go(App().use(tool=refuse), agent, "hi")
    assert caught.value.__notes__ == [
        "it left a hook or a layer; to refuse a call there, return ToolOutput(reason, is_error=True)"
    ]


def test_o2_the_openai_model_can_be_imported_from_the_top() -> None:
    assert middlechain.OpenAIModel("x").name == "x"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        middlechain.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_what_is_printed_in_a_debugger_says_what_it_is() -> None:
    assert repr(ToolResult("a", {}, "text", id="c")) == "ToolResult(name='a', output='text', is_error=False, id='c')"
    result = App().run_sync(Agent(model=ScriptedModel(["x"]), hooks=[{"before_run": _remember}]), "hi")
    assert repr(result.state) == "State(seen)"


def _remember(input: Any, ctx: Context) -> None:
    ctx.seen = input


def test_hooks_can_be_typed_without_being_called() -> None:
    assert Agent(hooks=[AgentHooks()]).hooks
    assert NextCalledAgain("x").args == ("x",)
