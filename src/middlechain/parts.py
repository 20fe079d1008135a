"""What a message is made of when it is more than one text: text, pictures, sounds and files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from middlechain.errors import ConfigurationError

__all__ = ["Audio", "File", "Image", "Part", "Text", "read_part", "write_part"]


@dataclass(frozen=True, slots=True)
class Text:
    """A part that is text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: a `url`, or its `data` with a `media_type` such as `"image/png"`.

    `detail` is OpenAI's hint about resolution (`"low"`, `"high"`, `"auto"`); default: none is sent.
    """

    url: str | None = None
    data: bytes | None = None
    media_type: str = "image/png"
    detail: str | None = None

    def __post_init__(self) -> None:
        if self.url is None and self.data is None:
            raise ConfigurationError("an Image() shows nothing; give it a url= or data=")


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound: its `data` and `format` (default `"wav"`)."""

    data: bytes
    format: str = "wav"


@dataclass(frozen=True, slots=True)
class File:
    """A file: its `data` with a `name` and a `media_type`, or the `id` of one uploaded before."""

    data: bytes | None = None
    name: str | None = None
    media_type: str = "application/pdf"
    id: str | None = None

    def __post_init__(self) -> None:
        if self.data is None and self.id is None:
            raise ConfigurationError("a File() holds nothing; give it data= or the id= of an uploaded one")


Part: TypeAlias = Text | Image | Audio | File


def write_part(part: Part) -> dict[str, Any]:
    """The part as plain data for JSON, in OpenAI's shape where it has one."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.url is not None and part.data is None and part.media_type == "image/png":
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.url, **detail}}
    data: dict[str, Any] = {"type": type(part).__name__.lower()}
    for name in part.__slots__:
        value = getattr(part, name)
        data[name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return data


def _read_file(data: Mapping[str, Any]) -> File:
    if "file_data" not in data:
        return File(id=data["file_id"], name=data.get("filename"))
    head, _, body = data["file_data"].rpartition(",")  # a data URL, or base64 alone
    media_type = head.removeprefix("data:").removesuffix(";base64") or "application/pdf"
    return File(base64.b64decode(body, validate=True), data.get("filename"), media_type)


def read_part(data: Mapping[str, Any]) -> Part:
    """The part that `write_part` wrote, or one in OpenAI's shape.

    Raises:
        LookupError: when something of it is missing; likewise TypeError and ValueError for what is wrong.
    """
    kind = data["type"]
    if kind in {"text", "refusal"}:
        return Text(data[kind])
    if kind == "file" and "file" in data:
        return _read_file(data["file"])
    if kind == "image_url":
        return Image(data["image_url"]["url"], detail=data["image_url"].get("detail"))
    if kind == "input_audio":
        return Audio(base64.b64decode(data["input_audio"]["data"], validate=True), data["input_audio"]["format"])
    for part in (Image, Audio, File):
        if kind == part.__name__.lower():
            fields = {name: data[name] for name in part.__slots__}
            if fields["data"] is not None:
                fields["data"] = base64.b64decode(fields["data"], validate=True)
            return part(**fields)
    raise ValueError(f"there is no part of type {kind!r}")
