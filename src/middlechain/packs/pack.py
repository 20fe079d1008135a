"""A pack that was loaded, and the agents that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from middlechain.chat import DEFAULT_SETTINGS, Model, Settings
from middlechain.context import Context
from middlechain.errors import ConfigurationError
from middlechain.limits import Limits
from middlechain.packs.checks import Examined, Prompt, examine
from middlechain.packs.issues import Issue, Place, nearest, refuse
from middlechain.packs.pack_agent import PackAgent
from middlechain.packs.pack_tools import make_tools
from middlechain.packs.reading import parse, read_text
from middlechain.packs.variables import read_values
from middlechain.packs.wording import ModelSettings, Wordings, merged

__all__ = ["Pack", "load", "loads"]


def load(path: str | Path) -> Pack:
    """Read a PromptPack file.

    What is wrong with what the pack says is told by `pack.check()`, and refused by `pack.agent(...)`.

    Args:
        path: of a JSON file, in UTF-8.

    Raises:
        ConfigurationError: when it cannot be read, is no JSON, has a key twice, is no pack, or is one of a later major
            version.
    """
    return loads(read_text(path), str(path))


def loads(text: str, source: str = "pack") -> Pack:
    """Read a pack out of JSON text.

    Args:
        text: the JSON.
        source: how messages call the pack.

    Raises:
        ConfigurationError: as `load`.
    """
    return Pack(parse(text, source), source)


class Pack:
    """A pack that was loaded. Made by `load` or `loads`.

    Args:
        data: the pack's JSON.
        source: how messages call it.
    """

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self._data = data
        self._source = source

    def __repr__(self) -> str:
        return f"Pack({self._source!r}, prompts={list(self.prompts)})"

    @property
    def id(self) -> str:
        """What the pack calls itself; `""` if it does not."""
        id = self._data.get("id")
        return id if isinstance(id, str) else ""

    @property
    def prompts(self) -> tuple[str, ...]:
        """The names of the prompts, each of which can be an agent."""
        return tuple(self._data["prompts"])

    def check(self) -> list[Issue]:
        """All that there is to know about the pack before it is used, each with its place.

        Returns:
            Errors, which keep agents from being made; what this library does not do; and notes.
        """
        return list(self._examined.issues)

    def variables(self, prompt: str) -> dict[str, str]:
        """The variables of a prompt, each with its type.

        Raises:
            ConfigurationError: when there is no such prompt.
        """
        found = self._prompt(prompt)
        return {name: variable.type for name, variable in found.variables.items()}

    def tools(self, prompt: str) -> tuple[str, ...]:
        """The names of a prompt's tools that need a function: those that are not blocked.

        Raises:
            ConfigurationError: when there is no such prompt.
        """
        found = self._prompt(prompt)
        return tuple(name for name in dict.fromkeys(found.tools) if name not in found.policy.blocked)

    def agent(
        self,
        prompt: str,
        *,
        model: Model | str | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        variables: Mapping[str, object] | None = None,
        settings: Settings = DEFAULT_SETTINGS,
        limits: Limits | None = None,
        middleware: Iterable[object] = (),
        **options: Any,  # Agent names and checks them
    ) -> PackAgent:
        """An agent of one prompt.

        Args:
            prompt: which one.
            model: who answers; default: the app's. `model_overrides` go by its name.
            tools: a function for each of the prompt's tools that is not blocked. Its parameters are those that the pack
                gives to the model, by name; what the model sends is held against their annotations.
            variables: values for the template, of the types that the pack declares.
            settings: these go before the pack's parameters, field by field.
            limits: for each step of the agent; of its `turns` and the pack's `max_rounds` the lower one holds.
            middleware: layers around the agent's calls; the pack's tool policy lies inside of them.
            options: the others of `Agent`; `name` is the prompt's by default. `instructions` are the pack's.

        Raises:
            ConfigurationError: for anything in the pack, or in what is given, that is wrong; all of it at once.
        """
        found = self._prompt(prompt)
        examined = self._examined
        root = Place((), list(examined.issues))
        place = root.at("prompts", prompt)
        values = read_values(found.variables, variables or {}, place.at("variables"))
        made = make_tools(found.tools, examined.tools, tools or {}, found.policy.blocked, place.at("tools"))
        for name in [name for name in ("instructions", "pack_guards") if name in options]:
            place.error(f"{name}= was given, and is the pack's to say; leave it out")
        self._refuse(root)
        wordings = found.drafts.fill(values, examined.fragments, root)
        self._refuse(root)
        wordings = wordings.with_settings(merged(Settings(tool_choice=found.policy.choice), settings))
        layers: list[object] = [*middleware]
        if model is None and wordings.special:
            layers.append(ModelSettings(wordings))
        if found.policy.has_layers:
            layers.append(found.policy)
        return PackAgent(
            found.guards,
            **{"name": prompt, "description": found.description, **options},
            model=model,
            instructions=_instructions(wordings, model),
            tools=made,
            settings=wordings.of(model).settings,
            limits=_limits(found.policy.rounds, limits),
            middleware=layers,
        )

    @cached_property
    def _examined(self) -> Examined:
        return examine(self._data)

    def _prompt(self, name: str) -> Prompt:
        if name not in self.prompts:
            raise ConfigurationError(
                f"the pack {self._source!r} has no prompt {name!r}; {nearest(name, self.prompts, 'it has')}"
            )
        if name not in self._examined.prompts:  # it is there, and is no prompt
            self._refuse(Place((), list(self._examined.issues)))
        return self._examined.prompts[name]

    def _refuse(self, place: Place) -> None:
        refuse(place.issues, f"the pack {self._source!r} cannot be used")


def _instructions(wordings: Wordings, model: Model | str | None) -> str | Callable[[Context[Any]], str]:
    """The system prompt. Where the model is the app's, and it matters which, it is known when it runs."""
    if model is not None or not wordings.special:
        return wordings.of(model).text

    def instructions(ctx: Context[Any]) -> str:
        return wordings.of(ctx.app.model).text

    return instructions


def _limits(rounds: int | None, limits: Limits | None) -> Limits | None:
    """The limits for each step: where the pack and the caller both limit its turns, the lower one."""
    if rounds is None:
        return limits
    if limits is None:
        return Limits(turns=rounds)
    return replace(limits, turns=rounds if limits.turns is None else min(rounds, limits.turns))
