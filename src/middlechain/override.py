"""What takes the place of models and tools in a test: `app.override(...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from middlechain.errors import ConfigurationError
from middlechain.signature import starts_on_loop
from middlechain.tools import Tool

if TYPE_CHECKING:
    from middlechain.chat import Model

__all__ = ["Override"]


class Override:
    """A model that answers every call, and functions that run in place of those of tools. Everything else stays.

    Args:
        model: who answers, whatever agents and layers say; None leaves that to them.
        tools: by the name of the tool, what runs in its place, with the arguments that the tool would get.
        outer: what holds for all that this one leaves alone.

    Raises:
        ConfigurationError: for a stand-in that cannot be called.
    """

    def __init__(
        self, model: Model | str | None, tools: Mapping[str, Callable[..., Any]], outer: Override | None
    ) -> None:
        for name, function in tools.items():
            if not isinstance(name, str) or not callable(function):
                raise ConfigurationError(
                    f"app.override(tools=) has {name!r}: {function!r:.60}; map the name of a tool to a function"
                )
        self.model: Model | str | None = outer.model if model is None and outer is not None else model
        own = {name: item.function if isinstance(item, Tool) else item for name, item in tools.items()}
        self._functions: dict[str, Callable[..., Any]] = own if outer is None else {**outer._functions, **own}
        self._unused = set(tools)

    def stand_in(self, tool: Tool) -> Tool:
        """The tool with the function that is to run; its name, schema and layers are those of the tool."""
        function = self._functions.get(tool.name)
        if function is None:
            return tool
        self._unused.discard(tool.name)
        return replace(tool, function=function, signature=replace(tool.signature, on_loop=starts_on_loop(function)))

    def check_call(self, tool: Tool, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Refuse a stand-in that cannot be called as the tool is.

        Raises:
            ConfigurationError: then; as a tool's own failure it would look like a result.
        """
        try:
            signature(tool.function).bind(*positional, **named)
        except TypeError as error:
            raise ConfigurationError(
                f"the function that app.override() puts in place of the tool {tool.name!r} does not take its arguments "
                f"({error}); give it the parameters of the tool"
            ) from error

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse stand-ins for tools that nothing has called and no known agent has.

        Raises:
            ConfigurationError: then; a test would otherwise pass though the real tool runs.
        """
        known = sorted(known)
        unknown = sorted(self._unused.difference(known))
        if unknown:
            raise ConfigurationError(
                f"app.override(tools=) replaced {', '.join(map(repr, unknown))} in no run, and no agent of the app has "
                f"such a tool (they have: {', '.join(known) or 'none'}); correct the name"
            )
