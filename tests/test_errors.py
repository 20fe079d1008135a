"""The tree of errors, their messages, and that they pickle (section 11)."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import middlechain
from middlechain import (
    Agent,
    App,
    BadRequest,
    ChatCall,
    ConfigurationError,
    ContractError,
    FatalToolError,
    GuardrailDenied,
    IncompleteReply,
    Layers,
    LimitExceeded,
    Limits,
    MiddlechainError,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    NextCalledAgain,
    NextCalledLate,
    NothingReturned,
    OutputError,
    RateLimited,
    Result,
    StreamDenied,
    ToolError,
    ToolUse,
    WrongReturn,
    messages,
    tool,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

TREE: dict[type[Exception], type[Exception]] = {
    MiddlechainError: Exception,
    ConfigurationError: MiddlechainError,
    ContractError: MiddlechainError,
    NothingReturned: ContractError,
    WrongReturn: ContractError,
    NextCalledAgain: ContractError,
    NextCalledLate: ContractError,
    GuardrailDenied: MiddlechainError,
    StreamDenied: GuardrailDenied,
    LimitExceeded: MiddlechainError,
    ToolError: MiddlechainError,
    FatalToolError: MiddlechainError,
    OutputError: MiddlechainError,
    ModelError: MiddlechainError,
    RateLimited: ModelError,
    ModelTimeout: ModelError,
    ModelUnavailable: ModelError,
    BadRequest: ModelError,
    IncompleteReply: ModelError,
}
LOCK = threading.Lock()  # cannot be pickled


class Boom(Exception):
    pass


class UnbuildableError(Exception):
    """Pickles, and cannot be read back: the way of many clients' errors."""

    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)


class OwnError(ToolError):
    """A user's error with a signature of its own."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@tool
async def ping() -> str:
    return "pong"


# The tree


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_each_error_has_its_place_in_the_tree(kind: type[Exception]) -> None:
    base = TREE[kind]
    assert issubclass(kind, base)
    assert issubclass(kind, MiddlechainError)
    siblings = [other for other in TREE if not issubclass(kind, other) and other is not kind]
    assert not any(issubclass(other, kind) for other in siblings if not issubclass(other, kind))
    public = [cls for cls in kind.__mro__[1:] if not cls.__name__.startswith("_")]
    assert public[0] is base


def test_the_library_exports_no_error_outside_the_tree() -> None:
    exported = [getattr(middlechain, name) for name in middlechain.__all__]
    assert {one for one in exported if isinstance(one, type) and issubclass(one, BaseException)} == set(TREE)


# What they carry


@pytest.mark.parametrize(
    "kind", [kind for kind in TREE if issubclass(kind, ModelError)], ids=lambda kind: kind.__name__
)
def test_a_model_error_has_message_status_and_retry_after(kind: type[ModelError]) -> None:
    error = kind("the server is tired", status=503, retry_after=1.5)
    assert (str(error), error.status, error.retry_after) == ("the server is tired", 503, 1.5)
    assert (kind("m").status, kind("m").retry_after) == (None, None)
    with pytest.raises(TypeError):
        kind("m", 503)  # type: ignore[call-arg]  # keywords only


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (RateLimited("m"), True),
        (ModelTimeout("m"), True),
        (ModelUnavailable("m"), True),
        (IncompleteReply("m"), True),
        (BadRequest("m"), False),
        (BadRequest("m", status=429), False),
        (ModelError("m"), False),
        (ModelError("m", status=400), False),
        (ModelError("m", status=404), False),
        (ModelError("m", status=408), True),
        (ModelError("m", status=429), True),
        (ModelError("m", status=500), True),
        (ModelError("m", status=503), True),
    ],
)
def test_a_model_error_says_whether_it_is_retryable(error: ModelError, retryable: bool) -> None:
    assert error.retryable is retryable


def test_a_denial_says_who_denied_what_and_why() -> None:
    for kind in (GuardrailDenied, StreamDenied):
        error = kind("no-ssn", "output", "a number like a SSN", {"score": 1})
        assert (error.guardrail, error.direction, error.reason) == ("no-ssn", "output", "a number like a SSN")
        assert error.metadata == {"score": 1}
        assert kind("g", "input", "r").metadata is None
        assert all(word in str(error) for word in ("no-ssn", "output", "a number like a SSN"))


def test_a_limit_says_which_it_was_and_how_to_raise_it() -> None:
    error = LimitExceeded("tokens", 10)
    assert (error.limit, error.value, error.result) == ("tokens", 10, None)
    assert "tokens=10" in str(error)
    assert str(error).endswith('Limits(on_exceed="stop")')


# Messages: what happened, who it was, the fix


async def forgets(call: Any, next: Any) -> None: ...


async def gives_seven(call: Any, next: Any) -> int:
    return 7


async def asks_twice(call: Any, next: Any) -> Any:
    await next()
    return await next()


async def hands_on_seven(call: Any, next: Any) -> Any:
    return await next(7)


async def never_awaits(call: Any, next: Any) -> None:
    next()


async def sends_seven(call: ChatCall, next: Any) -> None:
    await call.send(7)  # type: ignore[arg-type]
    await next()


def hooked(name: str, value: Any) -> Agent:
    def wrong_hook(*given: Any) -> Any:
        return value

    return Agent(name="a", hooks=[{name: wrong_hook}], tools=[ping])


CONTRACT: list[tuple[type[MiddlechainError], str, Any]] = [
    (NothingReturned, "return await next(), or a {answer}", forgets),
    (NothingReturned, "write: await next()", never_awaits),
    (WrongReturn, "return a {answer}, a str, or None to keep what next() gave", gives_seven),
    (WrongReturn, "give it a {call}, such as call.replace(...), or nothing", hands_on_seven),
    (NextCalledAgain, "keep the first answer, or mark the layer with @repeats", asks_twice),
]
SCOPES = {
    "run": ("RunCall", "Result"),
    "agent": ("AgentCall", "Result"),
    "chat": ("ChatCall", "ChatReply"),
    "tool": ("ToolCall", "ToolOutput"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("row", CONTRACT, ids=lambda row: row[2].__name__)
async def test_a_breach_of_the_contract_names_scope_and_layer_and_ends_with_the_fix(
    go: Go, scope: str, row: tuple[type[MiddlechainError], str, Any]
) -> None:
    kind, fix, layer = row
    model = ScriptedModel(lambda call: "b" if call.messages[-1].role == "tool" else [ToolUse("ping")])
    agent = Agent(name="a", model=model, tools=[ping])
    with pytest.raises(kind) as caught:
        await go(App().use(**{scope: layer}), agent, "q")
    call, answer = SCOPES[scope]
    assert scope in str(caught.value)
    assert layer.__name__ in str(caught.value)
    assert str(caught.value).endswith(fix.format(call=call, answer=answer))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("hook", "fix"),
    [
        ("before_run", "a str, a list of parts or a User"),
        ("before_prompt", "a str"),
        ("before_tool", "a ToolCall, such as call.replace(args=...)"),
        ("after_tool", "a str or a ToolOutput"),
        ("after_response", "a str"),
        ("after_run", "a Result or a str"),
    ],
)
async def test_a_hook_of_the_wrong_type_is_named_with_what_it_may_return(go: Go, hook: str, fix: str) -> None:
    agent = hooked(hook, 7)
    agent.model = ScriptedModel([[ToolUse("ping")], "b"])
    with pytest.raises(WrongReturn) as caught:
        await go(App(), agent, "q")
    assert "wrong_hook" in str(caught.value)
    assert hook in str(caught.value)
    assert str(caught.value).endswith(f"return {fix}, or None to keep what there is")


@pytest.mark.anyio
async def test_on_error_of_the_wrong_type_is_named_too_and_keeps_the_original_as_its_cause(go: Go) -> None:
    agent, original = hooked("on_error", 7), Boom()
    agent.model = ScriptedModel([original])
    with pytest.raises(WrongReturn, match=r"wrong_hook.*on_error; return a str, or None") as caught:
        await go(App(), agent, "q")
    assert caught.value.__cause__ is original


async def a_model_that_returns_text(call: ChatCall) -> Any:
    return "text"


class TextModel:
    name = "texter"
    chat = staticmethod(a_model_that_returns_text)


class NotABundle:
    pass


def bare(call: Any, next: Any) -> Any: ...


def anything(*args: Any, **kwargs: Any) -> Any: ...


BUILT_WRONGLY: list[tuple[str, str, Callable[[], Any]]] = [
    ("'bare'", "chat=bare", lambda: App().use(bare)),
    ("NotABundle", "chat=log", lambda: App().use(NotABundle())),
    ("NotABundle", "NotABundle()", lambda: App().use(NotABundle)),
    ("app.use()", "app.use(chat=log)", lambda: App().use()),
    ("Layers()", "Layers(chat=log)", lambda: Layers()),
    ("7", "or a list of them", lambda: App().use(chat=7)),  # type: ignore[arg-type]
    ("only=", "a predicate of the call", lambda: App().use(chat=bare, only=7)),  # type: ignore[arg-type]
    ("'shout'", "run, agent, chat, tool", lambda: App().middleware("shout")),  # type: ignore[call-overload]
    ("observe()", "a callable that takes an event", lambda: App().observe(7)),  # type: ignore[arg-type]
    ("'nope:x'", "'middlechain.models'", lambda: Agent(model="nope:x")),
    ("7", "async chat(call)", lambda: App(model=7)),  # type: ignore[arg-type]
    ("tools of Agent", "give a list of tools", lambda: Agent(tools="add")),  # type: ignore[arg-type]
    ("tool() got 7", "give it a function", lambda: tool(7)),  # type: ignore[call-overload]
    ("hooks of Agent", "a list of objects or mappings", lambda: Agent(hooks=7)),  # type: ignore[arg-type]
    ("instructions of Agent", "a callable of ctx", lambda: Agent(instructions=7)),  # type: ignore[arg-type]
    ("no/such/file", "the path of a text file", lambda: Agent(instructions=Path("no/such/file"))),
    ("settings of Agent", "give Settings(...)", lambda: Agent(settings={})),  # type: ignore[arg-type]
    ("limits of Agent", "give Limits(...)", lambda: Agent(limits=3)),  # type: ignore[arg-type]
    ("turns=-1", "None for no limit", lambda: Limits(turns=-1)),
    ("on_exceed='shrug'", '"stop"', lambda: Limits(on_exceed="shrug")),  # type: ignore[arg-type]
    ("message 0", '{"role": "user", "content": "..."}', lambda: messages.load([{}])),
    ("App(agents=)", "agents or agent classes", lambda: App(agents=[7])),  # type: ignore[list-item]
]


@pytest.mark.parametrize("row", BUILT_WRONGLY, ids=lambda row: row[0])
def test_what_is_built_wrongly_is_refused_at_once_naming_it_and_ending_with_the_fix(
    row: tuple[str, str, Callable[[], Any]],
) -> None:
    culprit, fix, build = row
    with pytest.raises(ConfigurationError) as caught:
        build()
    message = str(caught.value)
    assert culprit in message
    assert fix in message.rpartition(";")[2], "the fix stands last"
    assert len(message) < 400


@pytest.mark.anyio
async def test_what_is_found_wrong_in_a_run_names_it_and_ends_with_the_fix(go: Go) -> None:
    def seven(ctx: Any) -> Any:
        return 7

    for target, kind, culprit, fix in (
        (Agent(name="lonely"), ConfigurationError, "'lonely' has no model", 'try it with model="demo"'),
        (Agent(model=TextModel()), WrongReturn, "'texter'", "chat() must return a ChatReply"),
        (7, ConfigurationError, "7", "give an agent, an agent class, or the name of one"),
        ("ghost", ConfigurationError, "'ghost'", "give them with App(agents=[...])"),
        (Agent(name="p", model="demo", instructions=seven), ConfigurationError, "p gave 7", "return a str"),
    ):
        with pytest.raises(kind) as caught:
            await go(App(), target, "q")
        assert culprit in str(caught.value)
        assert str(caught.value).endswith(fix)


@pytest.mark.anyio
async def test_send_of_something_else_is_refused_with_what_may_be_sent() -> None:
    agent = Agent(model=ScriptedModel(["a"]))
    with pytest.raises(WrongReturn, match=r"int.*give it a TextDelta, a ReasoningDelta or a TextReset"):
        async with App().use(chat=sends_seven).stream(agent, "q") as stream:
            [event async for event in stream]


# Pickling

ERRORS: list[MiddlechainError] = [
    *(kind("what happened; the fix") for kind in TREE if issubclass(kind, MiddlechainError) and kind not in
      {GuardrailDenied, StreamDenied, LimitExceeded}),
    GuardrailDenied("g", "input", "r", {"score": 1}),
    StreamDenied("g", "output", "r"),
    LimitExceeded("turns", 3, Result("so far")),
    RateLimited("m", status=429, retry_after=2.0),
    OwnError(code=7),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle_with_all_they_carry(error: Any, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    if isinstance(error, ModelError):
        assert again.retryable is error.retryable


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_pickle_again_and_copy(error: MiddlechainError) -> None:
    for again in (
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error)))),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize(
    "attachment", [LOCK, lambda: 0, UnbuildableError("m", response=1)], ids=["a lock", "a lambda", "dumps only"]
)
@pytest.mark.parametrize("place", ["result", "metadata", "own", "args"])
def test_attachments_that_do_not_pickle_are_dropped_and_the_rest_stays(place: str, attachment: Any) -> None:
    error: Any
    if place == "result":
        error = LimitExceeded("turns", 3, attachment)
    elif place == "metadata":
        error = GuardrailDenied("g", "input", "r", {"it": attachment})
    elif place == "own":
        error = ToolError("m")
        error.attached, error.kept = attachment, 7
    else:
        error = ToolError("m", attachment)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    if place == "result":
        assert (again.result, again.limit, again.value, str(again)) == (None, "turns", 3, str(error))
    elif place == "metadata":
        assert (again.metadata, again.guardrail, again.reason, str(again)) == (None, "g", "r", str(error))
    elif place == "own":
        assert (str(again), again.kept, getattr(again, "attached", None)) == ("m", 7, None)
    else:
        assert again.args[0] == "m"


@pytest.mark.anyio
@pytest.mark.parametrize("state", [None, {"a": 1}, LOCK], ids=["free attributes", "a dict", "a lock"])
async def test_the_error_of_a_real_run_pickles_whatever_its_state_is(go: Go, state: Any) -> None:
    agent = Agent(model=ScriptedModel([[ToolUse("ping")]]), tools=[ping])
    with pytest.raises(LimitExceeded) as caught:
        await go(App(limits=Limits(chat_calls=1)), agent, "q", state=state)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.limit, again.value, str(again)) == ("chat_calls", 1, str(caught.value))
    if state is not LOCK:
        assert [message.text for message in again.result.messages] == ["q", "", "pong"]


# User code

PLACES = [
    *("run", "agent", "chat", "tool", "before_run", "before_prompt", "before_tool"),
    *("after_tool", "after_response", "after_run", "model", "instructions"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Boom, KeyError, StopAsyncIteration, OwnError, KeyboardInterrupt])
async def test_exceptions_of_user_code_are_never_wrapped(go: Go, place: str, kind: Any) -> None:
    error: BaseException = OwnError(code=7) if kind is OwnError else kind("out")

    def fail(*given: Any) -> Any:
        raise error

    model = ScriptedModel(fail if place == "model" else [[ToolUse("ping")], "b"])
    agent = Agent(model=model, tools=[ping], hooks=[{place: fail}] if "_" in place else [])
    if place == "instructions":
        agent.instructions = fail
    app = App().use(**{place: fail}) if place in SCOPES else App()
    expected = RuntimeError if kind is StopAsyncIteration and go.__name__ == "by_stream" else kind
    with pytest.raises(expected) as caught:
        await go(app, agent, "q")
    assert (caught.value.__cause__ if expected is RuntimeError else caught.value) is error


@pytest.mark.anyio
async def test_a_fatal_tool_error_goes_out_as_itself_with_its_cause(go: Go) -> None:
    cause = Boom("why")
    fatal = FatalToolError("stop here")

    @tool
    async def broken() -> None:
        raise fatal from cause

    with pytest.raises(FatalToolError) as caught:
        await go(App(), Agent(model=ScriptedModel([[ToolUse("broken")]]), tools=[broken]), "q")
    assert (caught.value, caught.value.__cause__) == (fatal, cause)
