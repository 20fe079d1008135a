"""What a server complains of, as a `ModelError`. Pure code; the clock is handed in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from middlechain.errors import BadRequest, ModelError, ModelTimeout, ModelUnavailable, RateLimited
from middlechain.models.loose import integer, mapping, mappings, text_of

__all__ = ["check_body", "error_for", "retry_after"]


# The statuses that go with these words; inside a 200 stream the words are often all there is
_STATUS = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "timeout": 408,
    "server_error": 500,
    "internal_server_error": 500,
    "overloaded_error": 503,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}

_FIXES = {
    400: "change the request as it says",
    401: "check the API key",
    403: "check what the API key may do",
    404: "check the model's name and base_url",
    408: "ask again, or allow it more time",
    429: "ask less often, or again after a while",
}


def error_for(
    status: int | None, body: object, headers: Mapping[str, str] | None = None, *, who: str = "", now: float = 0.0
) -> ModelError:
    """The error that a server's answer stands for.

    Args:
        status: HTTP status code; None when the server gave none, which is no retryable error.
        body: what it sent, JSON or text; its words go into the message.
        headers: of the answer, for `retry_after`.
        who: the model's name, for the message; default: it is not named.
        now: seconds since the epoch, for a `retry-after` that is a date.

    Returns:
        `RateLimited` (429), `ModelTimeout` (408), `ModelUnavailable` (5xx), `BadRequest` (other 4xx) or `ModelError`.
    """
    kind: type[ModelError] = ModelError
    fix = "ask again if that looks like a passing fault"
    if status is not None and 400 <= status < 600:
        kind = {408: ModelTimeout, 429: RateLimited}.get(status, ModelUnavailable if status >= 500 else BadRequest)
        fix = _FIXES.get(status, "ask again later" if status >= 500 else _FIXES[400])
    server = f"the server of the model {who!r}" if who else "the model's server"
    said = "reported an error" if status is None else f"answered {status}"
    words = _words(body) or "(it gave no reason)"
    return kind(f"{server} {said}: {words}; {fix}", status=status, retry_after=retry_after(headers or {}, now))


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait, as `retry-after-ms` or `retry-after` (a number of seconds or a date) says, or None.

    Args:
        headers: of the answer; case does not matter.
        now: seconds since the epoch.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    milliseconds = _seconds(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = lower.get("retry-after", "")
    seconds = _seconds(value)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _words(body: object) -> str:
    for _ in range(3):  # {"error": {"message": ...}}, {"message": ...}, {"detail": ...}, or the words alone
        if data := mapping(body):
            places = (data.get(key) for key in ("error", "message", "error_message", "detail"))
            body = next((value for value in places if text_of(value) or mapping(value) or mappings(value)), "")
    # A list is what FastAPI says of a body that does not validate
    return (text_of(body) or ", ".join(text_of(item.get("msg")) for item in mappings(body))).strip()[:1000]


def check_body(data: Mapping[str, object], who: str) -> None:
    """Raise the error that a 200 answer carries, if it carries one."""
    if data.get("error") or data.get("error_message") or data.get("object") == "error":
        raise error_for(_status(data), data, who=who)


def _status(data: Mapping[str, object]) -> int | None:
    for place in (mapping(data.get("error")), data):
        for key in ("code", "status", "status_code", "type"):
            value = place.get(key)
            if isinstance(value, str):
                value = int(value) if re.fullmatch("[45][0-9][0-9]", value) else _STATUS.get(value)
            if (status := integer(value)) is not None and 400 <= status < 600:
                return status
    return None
