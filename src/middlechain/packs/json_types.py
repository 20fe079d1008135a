"""What a value is in terms of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

__all__ = ["TYPES", "is_array", "is_number", "same"]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number, which true and infinity are not."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def is_array(value: object) -> TypeGuard[Sequence[object]]:
    """Whether it is an array, which no text is."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": is_number,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": is_array,
}


def same(value: object, other: object) -> bool:
    """Whether they are the same, where true is no 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)
