"""The calling contract: a layer is `(call, next)`, and layers fold into one handler. Read this room first.

A *handler* takes a call and gives an answer. `Scope.fold` puts layers around an endpoint, the first one outermost, and
each crossing holds its layer to the contract: what a returned value means, and how often `next()` may be called.

What the calls and answers are, and where a scope's endpoint lies, is not in here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, Generic, Never, Protocol, TypeAlias, TypeVar, cast

from middlechain.errors import ConfigurationError, NextCalledAgain, NextCalledLate, NothingReturned, WrongReturn

__all__ = ["Handler", "Layer", "Next", "Scope", "is_marked", "name_of", "observes", "repeats", "settle"]

Call = TypeVar("Call")
Answer = TypeVar("Answer")
Call_contra = TypeVar("Call_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)
Marked = TypeVar("Marked")


class Next(Protocol[Call_contra, Answer_co]):
    """What a layer is given to go on with: `await next()`, or `await next(changed)` with a changed copy of the call."""

    def __call__(self, call: Call_contra | None = None, /) -> Coroutine[Any, Any, Answer_co]: ...


Handler: TypeAlias = Callable[[Call], Coroutine[Any, Any, Answer]]
Inner: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]  # a handler that also takes the `next` it was reached by
Layer: TypeAlias = Callable[..., Any]  # (call, next) -> an answer, None, or something to await that gives one of these


def repeats(layer: Marked) -> Marked:
    """Mark a layer that calls `next()` again after it succeeded, knowing that each call is paid for.

    Args:
        layer: a function, or a class or object with `__call__`.

    Returns:
        The same object. The last success is what None keeps.
    """
    layer.__repeats__ = True  # type: ignore[attr-defined]  # a mark on whatever object it is
    return layer


def observes(layer: Marked) -> Marked:
    """Mark a layer, or a hook, that changes no answer: it returns None, or the very object that it was given.

    Whatever may still change a reply holds its text back in an append-only stream, unless it bears this mark. An answer
    of its own is then refused with `WrongReturn`. The call that it hands to `next()` may differ.

    Args:
        layer: a function, or a class or object with layers as methods, or with `__call__`.

    Returns:
        The same object.
    """
    layer.__observes__ = True  # type: ignore[attr-defined]  # as above
    return layer


def is_marked(layer: object, mark: Callable[..., Any]) -> bool:
    """Whether a layer, or the object that it is a method of, bears `repeats` or `observes`."""
    bearers = [layer]
    while isinstance(layer, partial):
        layer = layer.func
        bearers.append(layer)
    bearers.append(getattr(layer, "__self__", None))
    return any(getattr(bearer, f"__{mark.__name__}__", False) is True for bearer in bearers)


def name_of(function: object) -> str:
    """How messages name a function, whatever kind of callable it is."""
    if isinstance(function, partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


async def settle(value: Any) -> Any:
    """Await the value until it is not awaitable any more; the function it came from is not looked at."""
    while hasattr(type(value), "__await__") or (type(value) is GeneratorType and inspect.isawaitable(value)):
        value = await value
    return value


_FRESH, _RUNNING, _DONE, _FAILED, _LEFT = "fresh", "running", "done", "failed", "left"
_FORGOTTEN = "forgotten"  # made, and never awaited


class Continuation(Generic[Call, Answer]):
    """The `next` of one crossing. The handler further in reports to it how it was used."""

    __slots__ = ("answer", "call", "failure", "made", "place", "state")

    failure: BaseException  # of the last attempt that raised; not there before one has

    def __init__(self, place: Place[Call, Answer], call: Call) -> None:
        self.place = place
        self.call = call
        self.state = _FRESH
        self.answer: Answer | None = None  # of the last success
        # What next() made: nothing, one coroutine, or (rarely) a list of them.
        self.made: Coroutine[Any, Any, Answer] | list[Coroutine[Any, Any, Answer]] | None = None

    def __call__(self, call: Call | None = None, /) -> Coroutine[Any, Any, Answer]:
        if call is None:
            call = self.call
        elif call is not self.call:
            call = self.place.scope.adopt(self.place.layer, self.call, call)
        if self.made is None:
            self.made = going = self.place.inner(call, self)
            return going
        made = self._all_made()
        unfinished = [one for one in made if inspect.getcoroutinestate(one) != inspect.CORO_CLOSED]
        further = self.beside(unfinished, call)
        self.made = [*made, further]
        return further

    def _all_made(self) -> list[Coroutine[Any, Any, Answer]]:
        return self.made if isinstance(self.made, list) else [] if self.made is None else [self.made]

    async def beside(self, unfinished: Sequence[Coroutine[Any, Any, Answer]], call: Call) -> Answer:
        """A further `next()`, refused if one has begun meanwhile that was unfinished when this one was made."""
        if any(inspect.getcoroutinestate(one) != inspect.CORO_CREATED for one in unfinished):
            self.refuse_at_once()
        answer: Answer = await self.place.inner(call, self)
        return answer

    def refuse_at_once(self) -> Never:
        """Refuse a `next()` that comes while another one runs, or too late."""
        if self.state is _LEFT:
            raise NextCalledLate(
                f"next() was called after {self.place} had returned; await it inside the layer, before its return"
            )
        raise NextCalledAgain(
            f"{self.place} called next() while another next() of it was running; await one before the other"
        )

    async def begin_again(self, call: Call) -> None:
        """`next()` goes on once more: refuse it, or take back what the last attempt sent."""
        if self.state in {_LEFT, _RUNNING}:
            self.refuse_at_once()
        if self.answer is not None and not is_marked(self.place.layer, repeats):
            raise NextCalledAgain(
                f"{self.place} called next() again after it had succeeded, which does and charges everything twice; "
                "keep the first answer, or mark the layer with @repeats"
            )
        self.state = _RUNNING
        try:
            await self.place.scope.restart(call, getattr(self, "failure", None))
        except BaseException as failure:
            self.failed(failure)
            raise

    def failed(self, failure: BaseException) -> None:
        """`next()` raised; noted, to chain it to a NothingReturned."""
        if self.state is _RUNNING:
            self.state = _FAILED
            self.failure = failure

    def close(self) -> str:
        """Close the door behind the layer, and say how it left."""
        state, self.state = self.state, _LEFT
        for going in self._all_made():
            if inspect.getcoroutinestate(going) == inspect.CORO_CREATED:
                going.close()
                state = _FORGOTTEN
        return state

    def leave(self) -> None:
        """Close the door behind a layer that returned, and hold it to the contract."""
        left = self.close()
        if left is _RUNNING:
            raise NextCalledLate(
                f"{self.place} returned while its next() was still running; await it before the return"
            )
        if left is _FORGOTTEN:
            raise NothingReturned(
                f"{self.place} called next() and never awaited it, so nothing inside ran; write: await next()"
            )

    def keep(self) -> Answer:
        """What None keeps."""
        if self.answer is not None:
            return self.answer
        raise NothingReturned(
            f"{self.place} returned None without a successful next(); "
            f"return await next(), or {self.place.scope.an_answer}"
        ) from getattr(self, "failure", None)


class Place(Generic[Call, Answer]):
    """A layer with what is inside it."""

    __slots__ = ("inner", "layer", "scope")

    def __init__(self, scope: Scope[Call, Answer], layer: Layer, inner: Inner) -> None:
        self.scope = scope
        self.layer = layer
        self.inner = inner

    def __str__(self) -> str:
        return f"the {self.scope.name} layer {name_of(self.layer)!r}"


async def _nothing(call: Any, failure: BaseException | None) -> None:
    """Most scopes have nothing to take back when `next()` is called again."""


def _as_given(one: Any, other: Any) -> Any:
    return other


@dataclass(frozen=True, slots=True, eq=False)
class Scope(Generic[Call, Answer]):
    """One kind of call that layers wrap.

    Args:
        name: the keyword of `app.use` for it.
        call: the type of its calls.
        answer: the type of its answers; `answer(text)` is what a returned `str` stands for.
        restart: awaited when `next()` is called again, to take back what the last attempt sent: with the call, and with
            what the attempt raised (None after a success). It raises that again where nothing can be taken back.
        attach: gives a call that a layer made what only the runtime knows, from the call it replaces.
        complete: gives an answer that a layer made what only the runtime knows, from the call it answers.
    """

    name: str
    call: type[Call]
    answer: type[Answer]
    restart: Callable[[Call, BaseException | None], Awaitable[None]] = _nothing
    attach: Callable[[Call, Call], Call] = _as_given
    complete: Callable[[Call, Answer], Answer] = _as_given

    @property
    def an_answer(self) -> str:
        """The type of an answer with its article, for messages."""
        return f"a {self.answer.__name__}"

    def adopt(self, layer: Layer, old: Call, new: Call) -> Call:
        """The call that a layer handed to `next()`, checked and made complete."""
        if not isinstance(new, self.call):
            raise WrongReturn(
                f"the {self.name} layer {name_of(layer)!r} gave next() {_a(new)}; "
                f"give it a {self.call.__name__}, such as call.replace(...), or nothing"
            )
        return self.attach(old, new)

    def fold(
        self, layers: Iterable[tuple[Layer, Callable[[Call], bool] | None]], endpoint: Handler[Call, Answer]
    ) -> Handler[Call, Answer]:
        """One handler of the layers around the endpoint, the first outermost; each comes with a condition or None."""
        handler: Inner | None = None
        for layer, applies in reversed(tuple(layers)):
            inner = _ending(endpoint) if handler is None else handler
            crossing = self.wrap(layer, inner)
            handler = crossing if applies is None else _on(applies, crossing, inner)
        return endpoint if handler is None else handler

    def wrap(self, layer: Layer, inner: Inner) -> Inner:
        """The handler that crosses one layer, and reports to the layer around it."""
        expected, complete, place = self.answer, self.complete, Place(self, layer, inner)
        observing = is_marked(layer, observes)

        async def crossing(call: Call, outer: Continuation[Call, Answer] | None = None) -> Answer:
            if outer is not None:
                if outer.state is not _FRESH:
                    await outer.begin_again(call)
                outer.state = _RUNNING
            next = Continuation(place, call)
            try:
                value = layer(call, next)
                if type(value) is CoroutineType:
                    value = await value
                if type(value) is not expected and value is not None:
                    value = await settle(value)
                if next.state is _DONE and type(next.made) is CoroutineType:  # as most layers do, so without a call
                    next.state = _LEFT
                else:
                    next.leave()
                if value is None:
                    value = next.keep()
                elif value is not next.answer:
                    if observing:
                        self.refuse_change(layer)
                    value = complete(call, value if isinstance(value, expected) else self.read(layer, value))
            except BaseException as failure:
                if next.close() is _FORGOTTEN:
                    failure.add_note(f"{place} called next() and never awaited it; write: await next()")
                if outer is not None:
                    outer.failed(failure)
                raise
            if outer is not None and outer.state is _RUNNING:
                outer.state = _DONE
                outer.answer = value
            return cast("Answer", value)

        return crossing

    def refuse_change(self, layer: Layer) -> Never:
        """Refuse another answer than that of `next()`."""
        raise WrongReturn(
            f"the {self.name} layer {name_of(layer)!r} is marked @observes and returned an answer of its own; "
            "return None or the very object that next() gave, or take off the mark"
        )

    def read(self, layer: Layer, value: object) -> Answer:
        """The answer that a value other than None or an answer stands for."""
        if isinstance(value, str):
            return cast("Callable[[str], Answer]", self.answer)(value)
        raise WrongReturn(
            f"the {self.name} layer {name_of(layer)!r} returned {_a(value)}; "
            f"return {self.an_answer}, a str, or None to keep what next() gave"
        )


def _ending(endpoint: Handler[Call, Answer]) -> Inner:
    """The endpoint as the innermost layer needs it: it reports how it went."""

    async def reporting(call: Call, outer: Continuation[Call, Answer]) -> Answer:
        if outer.state is not _FRESH:
            await outer.begin_again(call)
        outer.state = _RUNNING
        try:
            answer = await endpoint(call)
        except BaseException as failure:
            outer.failed(failure)
            raise
        if outer.state is _RUNNING:
            outer.state = _DONE
            outer.answer = answer
        return answer

    def ending(call: Call, outer: Continuation[Call, Answer] | None = None) -> Coroutine[Any, Any, Answer]:
        return endpoint(call) if outer is None else reporting(call, outer)

    return ending


def _on(applies: Callable[[Call], bool], crossing: Inner, inner: Inner) -> Inner:
    def crossing_or_not(call: Call, outer: Any = None) -> Coroutine[Any, Any, Any]:
        return crossing(call, outer) if applies(call) else inner(call, outer)

    return crossing_or_not


def _a(value: object) -> str:
    return f"a value of type {type(value).__name__} ({value!r:.60})"


def check_layer(layer: object, where: str) -> None:
    """Refuse what cannot be called.

    Raises:
        ConfigurationError: when `layer` is not callable.
    """
    if not callable(layer):
        raise ConfigurationError(f"{where} got {_a(layer)}; give a callable (call, next), or a list of them")
