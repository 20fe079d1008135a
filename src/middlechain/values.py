"""Values on their way to and from a model: what a tool returned, as text (never a `repr`), and copies of arguments."""

from __future__ import annotations

import base64
import inspect
import json
import math
from collections.abc import AsyncIterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

__all__ = ["consumed", "cut", "fresh", "text_of"]


_SCALARS = frozenset({str, int, float, bool, dict, list})


async def consumed(value: Any) -> Any:
    """The value itself, or what a generator yields: strings joined, other items as a list."""
    if value is None or type(value) in _SCALARS:
        return value
    if inspect.isasyncgen(value) or (isinstance(value, AsyncIterable) and not inspect.isawaitable(value)):
        items = [item async for item in value]
    elif inspect.isgenerator(value) or isinstance(value, Iterator):
        items = list(value)
    else:
        return value
    texts = [item for item in items if isinstance(item, str)]
    return "".join(texts) if texts and len(texts) == len(items) else items


def text_of(value: Any) -> str:
    """The value as text.

    Args:
        value: a `str` stays as it is, bytes become base64, everything else JSON.

    Raises:
        ValueError: when some part of it has no JSON form.
    """
    if type(value) is str and value.isascii():
        return value
    if type(value) is int:
        return str(value)
    try:
        plain = plain_of(value)
    except RecursionError as error:
        raise ValueError(f"a value of type {type(value).__name__} contains itself") from error
    text = plain if isinstance(plain, str) and isinstance(value, str | bytes | bytearray) else _json(plain)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not text.isascii() else text


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def plain_of(value: Any) -> Any:
    """The value in terms of `str`, `int`, `float`, `bool`, None, list and dict.

    Raises:
        ValueError: when some part of it is none of these and has no such form.
    """
    if isinstance(value, Enum):
        return plain_of(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _not_finite(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_key(key): plain_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_of(item) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((plain_of(item) for item in value), key=_json)
    return _other(value)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    plain = plain_of(key)
    if isinstance(plain, list | dict):
        raise ValueError(f"a key of type {type(key).__name__} has no form as text")
    return plain if isinstance(plain, str) else _json(plain)


def _other(value: Any) -> Any:
    """Dataclasses and pydantic models field by field; dates, decimals and the like as pydantic writes them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_of(getattr(value, field.name)) for field in fields(value)}
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    if isinstance(value, BaseModel):
        return plain_of(value.model_dump())
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ValueError(f"a value of type {type(value).__name__} has no form as text") from error


def cut(text: str, limit: int | None) -> str:
    """The text within `limit` characters, with a note of how many were cut; None is no limit."""
    if limit is None or len(text) <= limit:
        return text
    kept = max(0, limit - len(_note(len(text))))
    return text[:kept] + _note(len(text) - kept)


def _note(count: int) -> str:
    return f"…[{count} characters cut]"


def fresh(value: Any) -> Any:
    """A copy of JSON-like data, so that changing it in place reaches nobody else."""
    if type(value) is dict:
        return {key: fresh(item) for key, item in value.items()}
    if type(value) is list:
        return [fresh(item) for item in value]
    return value
