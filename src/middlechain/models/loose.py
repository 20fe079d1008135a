"""Looking into what a server sent, whatever it is: what has the wrong type is read as if it were not there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import cast

from middlechain.errors import IncompleteReply

__all__ = ["integer", "is_object", "json_of", "mapping", "mappings", "number", "parse", "text_of"]


def mapping(value: object) -> Mapping[str, object]:
    """What is no object is an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, object]]:
    """The items of a list, as objects; what is no list is an empty one."""
    return [mapping(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """A text, or the text parts of a list of parts."""
    if isinstance(value, str):
        return value
    return "".join(part for item in mappings(value) if isinstance(part := item.get("text"), str))


def number(value: object) -> float | None:
    """A finite number, or None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def integer(value: object) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse(text: str | bytes, what: str) -> object:
    """What the JSON text says; `what` names it in the error.

    Raises:
        IncompleteReply: when it is not JSON.
    """
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:  # RecursionError: nested without end
        raise IncompleteReply(f"{what} is not JSON: {text[:80]!r}; ask again, or check base_url") from error


def json_of(value: object) -> str:
    """The value as JSON text."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise IncompleteReply("the model sent arguments that are nested too deep to be read; ask again") from error


def is_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
