"""Guardrails: what a guard may be, what it may say, where it is registered, and what is found of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, assert_type

from middlechain import (
    Agent,
    Allow,
    App,
    Assistant,
    ChatReply,
    Context,
    Deny,
    Enforced,
    Event,
    GuardrailDenied,
    GuardrailFired,
    Guardrails,
    Result,
    Rewrite,
    StreamDenied,
    User,
    Validation,
    guardrail,
    run,
)
from middlechain.guards import Guard, RewritingScan, Scan

# Guards made of functions.


@guardrail
def polite(text: str, ctx: Context) -> Deny | None:
    return Deny("it shouts") if text.isupper() else None


@guardrail("no-ssn", outcome="enforce", mode="observe", timeout=1, on_failure="allow", when="final", hold=20, id="g1")
async def no_ssn(text: str, ctx: Context[Any]) -> Enforced | Rewrite | None:
    if "078-05" in text:
        return Rewrite(text.replace("078-05", "***"), "a number", {"found": 1}, 0.9)
    return Enforced("there is a number in it", message="No numbers, please.") if "-" in text else None


@guardrail()
def shorter(text: str, ctx: Context) -> str:
    return text[:100]


@guardrail(hold="sentence", audit=True, message="No.", timeout=None)
async def sure(text: str, ctx: Context) -> Allow:
    return Allow(score=0.1, metadata={"model": "small"})


@guardrail("by-agent", hold=None, outcome=None)
def of_its_agent(text: str, ctx: Context[dict[str, int]]) -> None:
    assert_type(ctx.agent, Agent)
    ctx.state["judged"] = len(text) + len(ctx.channel)


assert_type(polite, Guard)
assert_type(no_ssn, Guard)
assert_type(shorter, Guard)
assert_type(guardrail("no-ssn")(lambda text, ctx: None), Guard)
assert_type(guardrail(lambda text, ctx: Deny("no") if len(text) > 9 else None), Guard)
assert_type(guardrail(outcome="deny")(lambda text, ctx: text.upper()), Guard)
assert_type(no_ssn.name, str)
assert_type(no_ssn.type, str)
assert_type(no_ssn.outcome, Literal["enforce", "deny", "rewrite"] | None)
assert_type(no_ssn.mode, Literal["enforce", "observe"])
assert_type(no_ssn.timeout, float | None)
assert_type(no_ssn.on_failure, Literal["deny", "allow"])
assert_type(no_ssn.when, Literal["reply", "final"])
assert_type(no_ssn.hold, int | Literal["sentence"] | None)
assert_type(no_ssn.message, str | None)


# Guards of one's own: functions, and objects.


def plain(text: str, ctx: Context) -> str | None:
    return None if text else "..."


class Digits:
    """Digits do not go out."""

    name = "digits"
    hold = 0

    async def judge(self, text: str, ctx: Context) -> Rewrite | None:
        clean = "".join(letter for letter in text if not letter.isdigit())
        return None if clean == text else Rewrite(clean)

    def scan(self, ctx: Context) -> DigitScan:
        return DigitScan()


class DigitScan:
    def feed(self, delta: str) -> str:
        return "".join(letter for letter in delta if not letter.isdigit())


class Counted:
    def __init__(self) -> None:
        self._seen = 0

    def push(self, delta: str) -> int:
        self._seen += len(delta)
        return self._seen - 1


scans: list[Scan | RewritingScan] = [DigitScan(), Counted()]
guards = [polite, no_ssn]
both_sides = {"input": [polite, plain], "output": [Digits(), no_ssn]}

assert_type(Guardrails(input=[polite, plain], output=(Digits(),)), Guardrails)
assert_type(Guardrails(guards).input, tuple[Guard, ...])
assert_type(Guardrails(output=guards).output, tuple[Guard, ...])
Guardrails()
Guardrails(output=(guard for guard in guards))


# Where they are registered.


class Careful(Agent):
    guardrails = {"input": [polite], "output": [no_ssn]}


class CarefulToo(Agent):
    guardrails = Guardrails(output=[no_ssn])


app = App(agents=[Careful], guardrails={"input": [polite]})
App(guardrails=Guardrails(output=guards))
App(guardrails=both_sides)
App(guardrails=None)
assert_type(app.guard(input=[polite, plain, Digits()]), App)
assert_type(app.guard(output=guards).guard(input=guards, output=[Digits()]).guard(), App)
Agent(guardrails={"input": guards, "output": (plain, shorter)})
Agent(guardrails=both_sides)
Agent(guardrails=None)


async def main(agent: Agent, error: GuardrailDenied) -> None:
    assert_type(await app.run(agent, "hello", guardrails={"output": [sure]}), Result)
    await run(agent, "hello", guardrails=Guardrails([polite]))
    await app.run(agent, "hello", guardrails=None, on_text=print)
    async with app.stream(agent, "hello", guardrails=both_sides) as stream:
        async for event in stream:
            saw(event)
    try:
        found((await app.run(agent, "hello")).validations[0])
    except StreamDenied as denied:
        assert_type(denied.guardrail, str)
        assert_type(denied.reason, str)
        assert_type(denied.metadata, Mapping[str, Any] | None)


# What is found.


def found(validation: Validation) -> None:
    assert_type(validation.name, str)
    assert_type(validation.id, str)
    assert_type(validation.type, str)
    assert_type(validation.direction, str)
    assert_type(validation.passed, bool)
    assert_type(validation.outcome, Literal["allow", "rewrite", "enforced", "deny", "errored"])
    assert_type(validation.reason, str)
    assert_type(validation.score, float | None)
    assert_type(validation.metadata, Mapping[str, Any] | None)
    assert_type(validation.blocked_text, str | None)


def saw(event: Event) -> None:
    if isinstance(event, GuardrailFired):
        assert_type(event.validation, Validation)
        print(event.agent, event.validation.outcome == "rewrite")


def read(result: Result, reply: ChatReply) -> None:
    assert_type(result.validations, tuple[Validation, ...])
    assert_type(reply.validations, tuple[Validation, ...])
    assert_type([one.name for one in result.validations if not one.passed], list[str])
    assert_type(result.blocked, bool)
    assert_type(result.blocked_by, str | None)
    assert_type(result.replace(validations=()), Result)
    assert_type(Result("no", blocked=True, validations=(Validation("no-ssn"),)), Result)
    assert_type(ChatReply("no", validations=(Validation("no-ssn", passed=False, outcome="deny"),)), ChatReply)
    assert_type((User("078-05", blocked=True).blocked, Assistant("No.", blocked=True).blocked), tuple[bool, bool])


def says(outcome: Allow | Enforced | Deny | Rewrite) -> str:
    """A function of one's own that tells the outcomes apart."""
    assert_type(outcome.score, float | None)
    assert_type(outcome.metadata, Mapping[str, Any] | None)
    match outcome:
        case Allow():
            return "allowed"
        case Enforced(reason, message):
            assert_type(message, str | None)
            return reason
        case Deny():
            return outcome.reason
        case Rewrite(text):
            return text


# What is refused.


def takes_a_number(text: int, ctx: Context) -> None:
    print(text)


def takes_no_context(text: str) -> None:
    print(text)


def returns_a_number(text: str, ctx: Context) -> int:
    return len(text)


async def returns_a_number_later(text: str, ctx: Context) -> int:
    return len(text)


def refused_functions() -> None:
    guardrail(takes_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    guardrail(takes_no_context)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    guardrail(returns_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    guardrail("len")(takes_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guardrail("len")(takes_no_context)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guardrail("len")(returns_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guardrail("len")(returns_a_number_later)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    guardrail(hold=20)(returns_a_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def refused_options() -> None:
    guardrail(7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    guardrail(name="no-ssn")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    guardrail("no-ssn", outcom="deny")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    guardrail("no-ssn", outcome="block")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail("no-ssn", mode="watch")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail("no-ssn", timeout="1s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail("no-ssn", on_failure="raise")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail("no-ssn", when="always")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail("no-ssn", hold="word")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    guardrail(plain, mode="observe")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    no_ssn.mode = "observe"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def refused_outcomes(validation: Validation) -> None:
    Enforced()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Deny()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Rewrite()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Rewrite(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Allow("fine")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Allow(reason="fine")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Enforced("no", score="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Deny("no").reason = "yes"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    validation.passed = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    validation.text  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    print(validation.outcome == "blocked")  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
    Validation("no-ssn", outcome="blocked")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def refused_places(agent: Agent, result: Result) -> None:
    app.guard([polite])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.guard(inputs=[polite])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.guard(input=polite)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.guard(output=plain)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Guardrails(input=polite)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Guardrails(inputs=[polite])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Guardrails().input = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    App(guardrails=[polite])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    App(guardrails={"input": polite})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    Agent(guardrails=polite)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(guardrails={"output": polite})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    Agent(guards={"output": [polite]})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.run(agent, "hello", guardrails=[polite])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.stream(agent, "hello", guardrails=polite)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Result("no", validations=["no-ssn"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    result.validations[0].nmae  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
