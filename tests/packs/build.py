"""Small packs for tests, and a stand-in for what makes guards."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from middlechain import ConfigurationError
from middlechain.context import Context
from middlechain.guards import Enforced, Guard
from middlechain.packs import Pack, loads

HERE = Path(__file__).parent
DESK = HERE / "desk.pack.json"
BROKEN = HERE / "broken.pack.json"


def prompt(**fields: Any) -> dict[str, Any]:
    """A prompt of a pack."""
    return {"id": "chat", "name": "Chat", "version": "1.0.0", "system_template": "Be kind.", **fields}


def data(prompts: Mapping[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    """A pack with a prompt `chat`, in which nothing is amiss."""
    return {
        "$schema": "https://promptpack.org/schema/v1.5/promptpack.schema.json",
        "id": "small",
        "name": "Small",
        "version": "1.0.0",
        "template_engine": {"version": "v1", "syntax": "{{variable}}"},
        "prompts": {"chat": prompt()} if prompts is None else prompts,
        **fields,
    }


def pack(root: Mapping[str, Any] | None = None, /, **fields: Any) -> Pack:
    """A pack whose prompt `chat` has these fields, within these of the root."""
    return loads(json.dumps(data({"chat": prompt(**fields)}, **(root or {}))), "small")


def variable(name: str, **fields: Any) -> dict[str, Any]:
    """A variable of a prompt."""
    return {"name": name, "type": "string", "required": False, **fields}


def function(name: str, *required: str, **properties: str) -> dict[str, Any]:
    """A tool of a pack; each property by its type."""
    schema = {"type": "object", "properties": {one: {"type": kind} for one, kind in properties.items()}}
    return {"name": name, "description": f"Does {name}.", "parameters": {**schema, "required": list(required)}}


def issues(given: Pack) -> list[tuple[str, str, str]]:
    """What is to know about a pack, as kinds, places and messages."""
    return [(issue.kind, issue.place, issue.message) for issue in given.check()]


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Have validators be made by a stand-in, which knows one type, `shout`; return what it was asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def build(type: str, params: Mapping[str, Any]) -> Guard:
        asked.append((type, dict(params)))
        if type != "shout":
            raise ConfigurationError(f"there is no guard of type {type!r} (did you mean 'shout'?)")
        wrong = tuple(
            f"there is no parameter {name!r}; take it out" for name in params if name not in {"message", "word"}
        )
        if wrong:
            raise ConfigurationError(f"the guard shout() cannot be made: {wrong}", wrong)

        def judge(text: str, ctx: Context[Any]) -> Enforced | None:
            return Enforced("shouting", params.get("message")) if params.get("word", "HEY") in text else None

        return Guard("shout", judge)

    registry = ModuleType("middlechain.guardrails.registry")
    registry.build = build  # type: ignore[attr-defined]  # a module may have anything
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    return asked
