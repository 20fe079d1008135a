"""A tool call: how a model's is read, and what hooks and layers see of it.

Which calls a reply asks for, and in which order their results are recorded, is the turn's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypedDict, Unpack

from middlechain.admission import Admission
from middlechain.chain import Scope
from middlechain.context import Context
from middlechain.signature import Arguments
from middlechain.tools import Tool, ToolOutput
from middlechain.values import fresh

if TYPE_CHECKING:
    from contextvars import Context as Variables

    from middlechain.agent import Agent
    from middlechain.messages import ToolUse
    from middlechain.pauses import Decisions, Pause

__all__ = [
    "TOOL",
    "WAITS",
    "Admission",
    "Decided",
    "Ticket",
    "ToolCall",
    "ToolResult",
    "Waiting",
    "parse_arguments",
    "read_call",
    "reread",
]


WAITS = "The call has not run: it waits for approval."


class Waiting:
    """The mark on an output that is none yet (`ToolOutput.data`): its call waits, or calls in what it asked for do."""

    __slots__ = ("asked", "call", "pause")

    def __init__(self, call: ToolCall | None, pause: Pause | None = None, asked: ToolUse | None = None) -> None:
        self.call = call
        self.pause = pause
        self.asked = asked  # what was put in the place of the model's call, before hooks and layers


class Decided:
    """What was said of a call that has waited."""

    __slots__ = ("approved", "asked", "inside", "refused")

    def __init__(self) -> None:
        self.asked: ToolUse | None = None  # what was put in its place
        self.refused = False
        self.approved: ToolCall | None = None  # the call that may run without asking
        self.inside: tuple[Pause, Decisions] | None = None  # where what it asked for goes on


class Ticket:
    """What the runtime keeps about one tool call while hooks and layers pass copies of it along."""

    __slots__ = (
        "admission",
        "alone",
        "by_code",
        "by_name",
        "checked",
        "decided",
        "ended",
        "ran",
        "variables",
    )

    def __init__(
        self, by_name: Mapping[str, Tool], admission: Admission, variables: Variables, *, by_code: bool = False
    ) -> None:
        self.by_name = by_name
        self.admission = admission
        self.variables = variables
        self.checked: tuple[object, Arguments] | None = None
        self.alone = False  # whether the call has a task of its own, and no layers in it
        self.ran: Tool | None = None  # the tool that started, if one has
        self.ended = False  # whether it has also ended with an output
        self.by_code = by_code  # whether ctx.call_tool made it
        self.decided: Decided | None = None  # of a call that has waited


class _ToolChanges(TypedDict, total=False):
    name: str
    args: Mapping[str, Any]
    id: str


_CALL_SLOTS = ("_args", "agent", "ctx", "id", "name", "problem", "ticket", "tool")


class ToolCall:
    """A tool call on its way in. `ToolCall("add", {"a": 1})` is enough to make one.

    Attributes:
        name: which tool.
        args: the arguments, a new copy at each reading; `{}` where there is a `problem`.
        id: ties it to the model's call; the runtime keeps the model's.
        tool: the `Tool` of that name; None for an unknown one.
        problem: what is wrong with the arguments, for the model to read; None if nothing is.
    """

    __slots__ = _CALL_SLOTS

    _args: Mapping[str, Any]
    if TYPE_CHECKING:  # slots that cannot be assigned, which an annotation does not say

        @property
        def name(self) -> str: ...
        @property
        def id(self) -> str: ...
        @property
        def tool(self) -> Tool | None: ...
        @property
        def problem(self) -> str | None: ...
        @property
        def ctx(self) -> Context[Any]: ...
        @property
        def agent(self) -> Agent: ...
        @property
        def ticket(self) -> Ticket | None: ...

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        id: str = "",
        tool: Tool | None = None,
        problem: str | None = None,
    ) -> None:
        args = fresh({} if args is None else dict(args))
        _fill(self, args, None, None, id, name, problem, None, tool)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name. Look at `problem` first: where there is one, there are none."""
        return cast("dict[str, Any]", fresh(self._args))

    def replace(self, **changes: Unpack[_ToolChanges]) -> ToolCall:
        """A copy with another name, other arguments or another id; tool and problem follow from them."""
        unknown = changes.keys() - _ToolChanges.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"a ToolCall has no field {', '.join(sorted(unknown))} to replace; it has name, args and id"
            )
        args = fresh(dict(changes["args"])) if "args" in changes else self._args
        copy = ToolCall.__new__(ToolCall)
        name, id = changes.get("name", self.name), changes.get("id", self.id)
        _fill(copy, args, self.agent, self.ctx, id, name, self.problem, self.ticket, self.tool)
        return copy if self.ticket is None else reread(self, copy)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ToolCall is immutable; use call.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a ToolCall is immutable; use call.replace(...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolCall, (self.name, self._args, self.id, None, self.problem)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        mine, theirs = (self.name, self._args, self.id), (other.name, other._args, other.id)
        return mine == theirs and self.problem == other.problem

    __hash__ = None  # type: ignore[assignment]  # its arguments are data that cannot be hashed

    def __repr__(self) -> str:
        return f"ToolCall(name={self.name!r}, args={self._args!r}, id={self.id!r})"


_SLOTS = [ToolCall.__dict__[slot].__set__ for slot in ToolCall.__slots__]


def _fill(call: ToolCall, *values: object) -> None:
    """Set the slots of a new call, in their order."""
    for put, value in zip(_SLOTS, values, strict=True):
        put(call, value)


_RESULT_SLOTS = ("_args", "id", "is_error", "name", "output")


class ToolResult:
    """What `after_tool` sees: the call as it was made, and the text for the model.

    Attributes:
        name: which tool.
        args: the arguments at call time, a new copy at each reading.
        output: the text.
        is_error: whether it is marked as an error.
        id: of the model's call.
    """

    __slots__ = _RESULT_SLOTS

    _args: Mapping[str, Any]
    if TYPE_CHECKING:  # as of a ToolCall

        @property
        def name(self) -> str: ...
        @property
        def output(self) -> str: ...
        @property
        def is_error(self) -> bool: ...
        @property
        def id(self) -> str: ...

    def __init__(self, name: str, args: Mapping[str, Any], output: str, is_error: bool = False, id: str = "") -> None:
        for slot, value in zip(ToolResult.__slots__, (dict(args), id, is_error, name, output), strict=True):
            object.__setattr__(self, slot, value)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments by name."""
        return cast("dict[str, Any]", fresh(self._args))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a ToolResult is immutable; return what should replace its text")

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolResult, (self.name, self._args, self.output, self.is_error, self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolResult) and self.__reduce__() == other.__reduce__()

    __hash__ = None  # type: ignore[assignment]  # as of a ToolCall

    def __repr__(self) -> str:
        return f"ToolResult(name={self.name!r}, output={self.output!r:.60}, is_error={self.is_error}, id={self.id!r})"


def read_call(
    name: str, args: Mapping[str, Any], problem: str | None, id: str, ticket: Ticket, ctx: Context[Any], agent: Agent
) -> ToolCall:
    """A call as it begins its way: looked up, and checked unless there is a problem already."""
    call = ToolCall.__new__(ToolCall)
    _fill(call, args, agent, ctx, id, name, problem, ticket, ticket.by_name.get(name))
    if problem is None:
        _check(call)
    tool, decided = call.tool, ticket.decided
    may_run = tool is not None and (tool.approve is not True if decided is None else not decided.refused)
    if may_run and call.problem is None:
        ticket.admission.expect(ticket)
    return call


def parse_arguments(arguments: str) -> tuple[dict[str, Any], str | None]:
    """The arguments that a model wrote, and what is wrong with them, if anything. Nothing at all is no arguments."""
    if not arguments.strip():
        return {}, None
    try:
        args = _JSON.decode(arguments)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not JSON ({error})"
    if not isinstance(args, dict):
        return {}, f"the arguments are a JSON {type(args).__name__}, not an object"
    if _depth(arguments) > _DEEPEST:
        return {}, f"the arguments are nested more than {_DEEPEST} levels deep"
    return args, None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)
_DEEPEST = 100  # levels; far beyond any schema, and far within what Python can recurse through


def _depth(text: str) -> int:
    """How deep JSON text nests, at the most: brackets within strings count too."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return 0
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def reread(old: ToolCall, new: ToolCall) -> ToolCall:
    """A changed call with the tool and the problem that follow from the change; the id stays."""
    ticket = cast("Ticket", old.ticket)
    same_arguments = new._args is old._args
    problem = old.problem if same_arguments else None
    call = ToolCall.__new__(ToolCall)
    _fill(call, new._args, old.agent, old.ctx, old.id, new.name, problem, ticket, ticket.by_name.get(new.name))
    if problem is None and not (same_arguments and new.name == old.name):
        _check(call)
    return call


def _check(call: ToolCall) -> None:
    """Hold the arguments against the tool's schema; the outcome is kept for when the tool runs."""
    if call.tool is None:
        return
    try:
        arguments = call.tool.signature.check(call.args)
    except ValueError as error:
        object.__setattr__(call, "problem", str(error))
        object.__setattr__(call, "_args", {})
        return
    object.__setattr__(call, "_args", arguments.seen)
    cast("Ticket", call.ticket).checked = (arguments.seen, arguments)


def _attach(old: ToolCall, new: ToolCall) -> ToolCall:
    return new if new.ticket is old.ticket else reread(old, new)


TOOL: Scope[ToolCall, ToolOutput] = Scope("tool", ToolCall, ToolOutput, attach=_attach)
