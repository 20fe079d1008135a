"""Errors: what an `except` clause knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from middlechain import (
    Agent,
    App,
    BadRequest,
    ConfigurationError,
    ContractError,
    FatalToolError,
    GuardrailDenied,
    IncompleteReply,
    LimitExceeded,
    MiddlechainError,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    NextCalledAgain,
    NextCalledLate,
    NothingReturned,
    OutputError,
    RateLimited,
    StreamDenied,
    ToolError,
    WrongReturn,
)


async def caught(app: App, agent: Agent) -> None:
    try:
        await app.run(agent, "hello")
    except LimitExceeded as error:
        assert_type(error.limit, str)
        assert_type(error.value, float)
    except (RateLimited, ModelTimeout, ModelUnavailable, IncompleteReply) as error:
        assert_type(error.retry_after, float | None)
        assert_type(error.retryable, bool)
    except ModelError as error:
        assert_type(error.status, int | None)
    except GuardrailDenied as error:
        assert_type(error.guardrail, str)
        assert_type(error.direction, str)
        assert_type(error.reason, str)
        assert_type(error.metadata, Mapping[str, Any] | None)
    except (ConfigurationError, ContractError):
        raise
    except MiddlechainError as error:
        assert_type(error, MiddlechainError)


contract: list[type[ContractError]] = [NothingReturned, WrongReturn, NextCalledAgain, NextCalledLate]
model: list[type[ModelError]] = [RateLimited, ModelTimeout, ModelUnavailable, BadRequest, IncompleteReply]
others: list[type[MiddlechainError]] = [*contract, *model, ConfigurationError, ToolError, FatalToolError, OutputError]

assert_type(ModelError("no answer", status=503, retry_after=2.5), ModelError)
assert_type(RateLimited("slow down", retry_after=1), RateLimited)
assert_type(GuardrailDenied("politeness", "output", "rude", {"word": "fool"}), GuardrailDenied)
denied: GuardrailDenied = StreamDenied("politeness", "output", "rude")
LimitExceeded("turns", 3)
ToolError("Name a city.")


def refused(limit: LimitExceeded, failure: ModelError) -> None:
    ModelError("no answer", 503)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ModelError("no answer", code=503)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ModelError(status=503)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ModelError("no answer", retry_after="2 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    GuardrailDenied("politeness")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    LimitExceeded()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    failure.retryable = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    failure.code  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    limit.bound  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    wrong: list[type[ContractError]] = [ModelError]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    print(wrong)
    wait: float = failure.retry_after  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(wait)
