"""Every error that the library raises itself; exceptions of user code pass through it unchanged.

    MiddlechainError
    ├── ConfigurationError        something was built or called wrongly
    ├── ContractError             a layer, hook or caller broke the calling contract
    │   ├── NothingReturned
    │   ├── WrongReturn
    │   ├── NextCalledAgain
    │   └── NextCalledLate
    ├── GuardrailDenied           a text was refused
    │   └── StreamDenied          ... after part of the reply had been sent
    ├── LimitExceeded             a run would have spent more than it may
    ├── ToolError                 raised by a tool, for the model to read
    ├── FatalToolError            raised by a tool, to end the step
    ├── OutputError               no structured answer could be had
    └── ModelError                the model or its server failed
        ├── RateLimited
        ├── ModelTimeout
        ├── ModelUnavailable
        ├── BadRequest
        └── IncompleteReply

A message says what happened and whose fault it is, and ends with the fix. Errors can be pickled; an attachment that
cannot be pickled is left behind.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from inspect import get_annotations
from typing import Any

__all__ = [
    "BadRequest",
    "ConfigurationError",
    "ContractError",
    "FatalToolError",
    "GuardrailDenied",
    "IncompleteReply",
    "LimitExceeded",
    "MiddlechainError",
    "ModelError",
    "ModelTimeout",
    "ModelUnavailable",
    "NextCalledAgain",
    "NextCalledLate",
    "NothingReturned",
    "OutputError",
    "RateLimited",
    "StreamDenied",
    "ToolError",
    "WrongReturn",
]


class MiddlechainError(Exception):
    """The root of the tree."""

    def __reduce__(self) -> tuple[Any, ...]:
        attachments = {name: value for name, value in self.__dict__.items() if _pickles(value)}
        args = tuple(arg if _pickles(arg) else None for arg in self.args)
        return _rebuild, (type(self), args, attachments)


def _rebuild(kind: type[MiddlechainError], args: tuple[Any, ...], attachments: dict[str, Any]) -> MiddlechainError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(dict.fromkeys(_attachments_of(kind)))
    error.__dict__.update(attachments)
    return error


def _attachments_of(kind: type[MiddlechainError]) -> list[str]:
    """The attributes that an error of this kind always has, so that a dropped one reads as None."""
    return [name for cls in kind.__mro__ for name in get_annotations(cls)]


def _pickles(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes; some exceptions dump and do not load
    except Exception:  # noqa: BLE001 - whatever a foreign __reduce__ raises means the same: this attachment stays behind
        return False
    return True


class ConfigurationError(MiddlechainError):
    """An app, agent, tool or call was put together wrongly. Raised before anything is spent.

    Args:
        message: what is wrong, and the fix.
        issues: where several things may be wrong, a sentence for each; default: none.
    """

    issues: tuple[str, ...]

    def __init__(self, message: str = "", issues: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.issues = issues


class ContractError(MiddlechainError):
    """A layer, hook or caller did something that the contract does not allow."""


class NothingReturned(ContractError):
    """A layer returned None, and there is no answer of `next()` that this could keep."""


class WrongReturn(ContractError):
    """A layer, hook or model returned (or handed on) a value of the wrong type."""


class NextCalledAgain(ContractError):
    """`next()` was called again after it had succeeded, or twice at once."""


class NextCalledLate(ContractError):
    """`next()` was called, or was still running, after its layer had returned."""


class GuardrailDenied(MiddlechainError):
    """A guardrail, or a layer acting as one, refused a text.

    Args:
        guardrail: name of what refused.
        direction: `"input"` or `"output"`.
        reason: why, in one sentence.
        metadata: anything more that the guardrail wants to tell; default None.

    Attributes:
        validation: the `Validation` of it; None before the runtime has seen it.
    """

    guardrail: str
    direction: str
    reason: str
    metadata: Mapping[str, Any] | None
    validation: Any

    def __init__(self, guardrail: str, direction: str, reason: str, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"guardrail {guardrail!r} denied the {direction}: {reason}")
        self.guardrail = guardrail
        self.direction = direction
        self.reason = reason
        self.metadata = metadata
        self.validation = None


class StreamDenied(GuardrailDenied):
    """The same, after part of the reply had been sent."""


class LimitExceeded(MiddlechainError):
    """A run, or a step of it, would have spent more than its `Limits` allow.

    Args:
        limit: name of the field of `Limits`, such as `"turns"`.
        value: what that field says.
        result: what there was of a result by then; default None.
    """

    limit: str
    value: float
    result: Any
    stops: bool
    limits: Any

    def __init__(self, limit: str, value: float, result: Any = None) -> None:
        super().__init__(
            f"the limit {limit}={value:g} does not allow any more; raise it with Limits({limit}=...), "
            'or take what there is with Limits(on_exceed="stop")'
        )
        self.limit = limit
        self.value = value
        self.result = result
        self.stops = False  # set where Limits(on_exceed="stop") hold: the step then ends with what there is
        self.limits = None  # whose field it is


class ToolError(MiddlechainError):
    """Raise it in a tool to tell the model what went wrong: its message is sent as it is."""


class FatalToolError(MiddlechainError):
    """Raise it in a tool to end the step; `on_error` gets it."""


class OutputError(MiddlechainError):
    """The model gave no answer of the type that `output=` asks for."""


class ModelError(MiddlechainError):
    """The model, or the server it runs on, failed.

    Args:
        message: what happened, with the server's own words where it gave any.
        status: HTTP status code, if there was one; default None.
        retry_after: seconds to wait before the next attempt, if the server said so; default None.
    """

    status: int | None
    retry_after: float | None

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when it is made again."""
        return self.status is not None and (self.status in {408, 429} or self.status >= 500)


class _Retryable(ModelError):
    @property
    def retryable(self) -> bool:
        return True


class RateLimited(_Retryable):
    """The server asks for fewer requests (429)."""


class ModelTimeout(_Retryable):
    """The server did not answer in time."""


class ModelUnavailable(_Retryable):
    """The server could not be reached, or says that it cannot serve now (5xx)."""


class BadRequest(ModelError):
    """The server refuses this request; the same one would be refused again (4xx)."""

    @property
    def retryable(self) -> bool:
        return False


class IncompleteReply(_Retryable):
    """A reply broke off: its stream ended without a finish reason, or with something unreadable."""
