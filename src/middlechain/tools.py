"""Tools: what one is, how a function becomes one, and what one gives. Calling them is next door, in `tool_calls`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, cast, overload

from typing_extensions import ParamSpec, TypedDict, TypeVar, Unpack

from middlechain.chain import name_of
from middlechain.errors import ConfigurationError
from middlechain.signature import Signature, read_signature
from middlechain.values import fresh, text_of

if TYPE_CHECKING:
    from middlechain.tool_calls import ToolCall

__all__ = ["Approve", "Tool", "ToolOutput", "tool", "tools_of"]


Approve: TypeAlias = "bool | Callable[[ToolCall], bool | Awaitable[bool]]"
P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


@dataclass(frozen=True, slots=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Made by `tool`; calling it calls the function.

    Args:
        name: what the model calls it.
        description: what the model is told of it.
        function: what runs.
        expose_errors: whether the message of any exception is sent to the model; default: only a `ToolError`'s.
        max_result_chars: most characters of a result that the model gets; default: all.
        approve: whether a call waits for approval before it runs, or a predicate of the call that says so.
    """

    name: str
    description: str
    function: Callable[P, R]
    signature: Signature = field(repr=False)
    expose_errors: bool = False
    max_result_chars: int | None = None
    approve: Approve = False

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, a new copy at each reading."""
        return cast("Mapping[str, Any]", fresh(self.signature.schema))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as it was written."""
        return self.function(*args, **kwargs)


class _ToolOptions(TypedDict, total=False):
    name: str
    description: str
    expose_errors: bool
    max_result_chars: int | None
    approve: Approve


class _Toolmaker(Protocol):
    """What `tool(name=...)` gives: the decorator."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[_ToolOptions]) -> _Toolmaker: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a sync or async function: `@tool`, or `tool(name=..., ...)(function)`.

    The schema comes from the signature; descriptions from the docstring's first paragraph and its Google-style `Args`
    section, or from `Annotated[..., Field(description=...)]`. A parameter annotated `Context` is filled in and hidden
    from the model.

    Args:
        function: an async function starts on the event loop, any other in a worker thread.
        name: default: the function's name.
        description: default: the first paragraph of its docstring.
        expose_errors: send the message of any exception to the model; default False, since it may hold secrets.
        max_result_chars: most characters of a result that the model gets, the note of what was cut included.
        approve: True, or a predicate `(call) -> bool`, sync or async: such a call does not run, the step ends `pending`
            and `conversation.resume` goes on. Default False.
        options: these, when there is no function yet.

    Raises:
        ConfigurationError: for an unknown option, or a signature that cannot be described to a model.
    """
    for option in options:
        if option not in _ToolOptions.__annotations__:
            raise ConfigurationError(
                f"tool() has no option {option!r}; it has {', '.join(_ToolOptions.__annotations__)}"
            )
    if function is None:
        return partial(_make_tool, **options)
    return _make_tool(function, **options)


def _make_tool(function: Callable[..., Any], **options: Any) -> Tool:
    if not callable(function):
        raise ConfigurationError(f"tool() got {function!r:.80}; give it a function")
    if isinstance(function, Tool):
        return _make_tool(function.function, **{**_options_of(function), **options})
    most = options.get("max_result_chars")
    if most is not None and (type(most) is not int or most < 1):
        raise ConfigurationError(
            f"tool(max_result_chars={most!r}) is no number of characters; give one from 1 up, or None"
        )
    approve = options.get("approve", False)
    if not isinstance(approve, bool) and not callable(approve):
        raise ConfigurationError(f"tool(approve={approve!r:.60}) is neither a bool nor a predicate of the call")
    signature = read_signature(function)
    named: dict[str, Any] = {"name": name_of(function).rpartition(".")[2], "description": signature.summary}
    return Tool(function=function, signature=signature, **{**named, **options})


def _options_of(tool: Tool) -> dict[str, Any]:
    return {option: getattr(tool, option) for option in _ToolOptions.__annotations__}


def tools_of(given: object, owner: str) -> tuple[Tool, ...]:
    """The tools of an agent; plain functions become tools.

    Raises:
        ConfigurationError: when two have one name, or one is not a function.
    """
    if isinstance(given, Tool) or (callable(given) and not isinstance(given, Iterable)):
        name = given.name if isinstance(given, Tool) else name_of(given)
        raise ConfigurationError(f"the tools of {owner} are one tool, {name!r}; give a list: tools=[{name}]")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"the tools of {owner} are {given!r:.80}; give a list of tools")
    tools = tuple(item if isinstance(item, Tool) else tool(cast("Callable[..., Any]", item)) for item in given)
    by_name: dict[str, Tool] = {}
    for item in tools:
        other = by_name.setdefault(item.name, item)
        if other is not item:
            raise ConfigurationError(
                f"{owner} has two tools named {item.name!r}: {name_of(other.function)} and {name_of(item.function)}; "
                "rename one with tool(name=...)"
            )
    return tuple(by_name.values())


class _OutputChanges(TypedDict, total=False):
    content: object
    is_error: bool
    data: Any
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What came of a tool call, as the model gets it.

    Args:
        content: the text for the model; what is no text becomes text as a tool's return value does.
        is_error: whether it is marked as an error.
        data: anything for layers and hooks; never sent.
        error: the exception behind an error, never sent.
    """

    content: str
    is_error: bool = False
    data: Any = None
    error: BaseException | None = None

    if TYPE_CHECKING:  # what `__post_init__` takes

        def __init__(
            self, content: object, is_error: bool = False, data: Any = None, error: BaseException | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", text_of(self.content))

    def replace(self, **changes: Unpack[_OutputChanges]) -> Self:
        """A copy with some fields changed."""
        return replace(self, **cast("dict[str, Any]", changes))
