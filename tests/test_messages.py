"""Messages, their parts and tool calls: what one is made of, and that `dump` and `load` are exact (section 1)."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain import (
    Agent,
    App,
    Assistant,
    Audio,
    ConfigurationError,
    File,
    Image,
    Message,
    System,
    Text,
    ToolMessage,
    ToolUse,
    User,
    messages,
)
from middlechain.testing import ScriptedModel

from .conftest import Go

IMAGE = Image(url="https://example.org/a.png")
PARTS: list[Text | Image] = [Text("a"), IMAGE, Text("b")]
MESSAGES: list[Message] = [
    System("s"),
    User("u", name="ann"),
    Assistant("a", [ToolUse("add", {"n": 1}, "1")], "hm", "tool_calls", True),
    ToolMessage("2", "1", "add", is_error=True),
]

TEXTS = st.text(max_size=8)
MAYBE = st.none() | TEXTS
DATA = st.binary(max_size=8)
ANY_PART = (
    st.builds(Text, TEXTS)
    | st.builds(Image, url=TEXTS, data=st.none() | DATA, media_type=TEXTS | st.just("image/png"), detail=MAYBE)
    | st.builds(Image, data=DATA, media_type=TEXTS, detail=MAYBE)
    | st.builds(Audio, DATA, TEXTS)
    | st.builds(File, DATA, MAYBE, TEXTS, MAYBE)
    | st.builds(File, name=MAYBE, media_type=TEXTS, id=TEXTS)
)
CONTENT = TEXTS | st.lists(ANY_PART, max_size=3)
USES = st.lists(st.builds(ToolUse, TEXTS, TEXTS | st.dictionaries(TEXTS, st.integers() | TEXTS), TEXTS), max_size=2)
ANY_MESSAGE = (
    st.builds(System, CONTENT)
    | st.builds(User, CONTENT, MAYBE)
    | st.builds(Assistant, CONTENT, USES, MAYBE, MAYBE, st.booleans())
    | st.builds(ToolMessage, CONTENT, TEXTS, TEXTS, st.booleans())
)


# dump and load


@given(st.lists(ANY_MESSAGE, max_size=4))
def test_dump_and_load_are_exact(said: list[Message]) -> None:
    data = messages.dump(said)
    again = messages.load(json.loads(json.dumps(data)))
    assert again == said
    assert [type(message) for message in again] == [type(message) for message in said]
    assert messages.dump(again) == data


@given(st.lists(ANY_MESSAGE, max_size=4))
def test_load_takes_what_dump_gave_as_tuples_too_and_changes_nothing_of_it(said: list[Message]) -> None:
    data = messages.dump(said)
    before = copy.deepcopy(data)
    assert messages.load(tuple(data)) == said
    assert data == before


def test_dump_writes_openais_shape_where_it_has_one() -> None:
    assert messages.dump([User(PARTS), MESSAGES[2], ToolMessage("2", "1", "add")]) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "text", "text": "b"},
            ],
        },
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}],
            "reasoning_content": "hm",
            "finish_reason": "tool_calls",
            "blocked": True,
        },
        {"role": "tool", "content": "2", "tool_call_id": "1", "name": "add"},
    ]


OPENAI: list[dict[str, Any]] = [
    {"role": "developer", "content": "be brief"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "input_audio", "input_audio": {"data": "AAE=", "format": "mp3"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "7", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "7", "content": "ok"},
    {"role": "assistant", "content": "fine", "refusal": None, "annotations": []},
]
SAID = [
    System("be brief"),
    User([Text("look"), Audio(b"\x00\x01", "mp3")]),
    Assistant("", [ToolUse("t", "{}", "7")]),
    ToolMessage("ok", "7", "t"),
    Assistant("fine"),
]


def test_load_reads_openai_style_dicts() -> None:
    assert messages.load(OPENAI) == SAID


@pytest.mark.anyio
async def test_history_takes_openai_style_dicts_also_mixed_with_messages(go: Go) -> None:
    model = ScriptedModel(["a"])
    result = await go(App(), Agent(model=model), "u", history=[*OPENAI[:3], *SAID[3:]])
    assert list(model.calls[0].messages) == [*SAID, User("u")]
    assert result.messages == (User("u"), Assistant("a", finish_reason="stop"))


@pytest.mark.anyio
async def test_history_takes_what_dump_wrote_with_its_marks(go: Go) -> None:
    model = ScriptedModel(["a"])
    await go(App(), Agent(model=model), "u", history=messages.dump(MESSAGES))
    assert list(model.calls[0].messages) == [*MESSAGES, User("u")]


@pytest.mark.parametrize(
    "bad",
    [
        {"content": "no role"},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "user", "content": [{"type": "audio", "data": "not base64!", "format": "wav"}]},
        {"role": "tool", "content": "without an id"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        "hello",
        None,
        7,
    ],
)
def test_what_is_no_message_is_refused_with_its_place_and_the_fix(bad: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        messages.load([{"role": "user", "content": "fine"}, bad])
    assert str(caught.value).startswith("message 1 of the history")
    assert str(caught.value).endswith('dicts such as {"role": "user", "content": "..."}')


@pytest.mark.anyio
async def test_a_bad_history_is_refused_before_anything_is_spent(go: Go) -> None:
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match="message 0 of the history"):
        await go(App(), Agent(model=model), "u", history=[{"role": "robot"}])
    assert not model.calls


# text and with_text


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_has_one_text_accessor_and_one_setter_by_copy(message: Message) -> None:
    assert message.text == message.content
    changed = message.with_text("new")
    assert (changed.text, changed.content, type(changed)) == ("new", "new", type(message))
    assert message.text != "new"
    assert changed.with_text(message.text) == message  # all other fields stayed


def test_the_text_of_parts_is_their_text_joined() -> None:
    assert User(PARTS).text == "ab"
    assert User([IMAGE]).text == ""


def test_a_new_text_takes_the_place_of_the_first_text_part_and_leaves_the_others_that_are_not_text() -> None:
    assert User([IMAGE, Text("a"), IMAGE, Text("b")]).with_text("new").content == (IMAGE, Text("new"), IMAGE)


def test_a_new_text_comes_first_where_there_was_none() -> None:
    assert User([IMAGE]).with_text("new").content == (Text("new"), IMAGE)


@given(ANY_MESSAGE, TEXTS)
def test_what_was_set_is_what_is_read(message: Message, text: str) -> None:
    changed = message.with_text(text)
    assert changed.text == text
    assert changed.with_text("") == message.with_text("")


# content


@pytest.mark.parametrize("content", [PARTS, tuple(PARTS), iter(PARTS)], ids=["list", "tuple", "iterator"])
def test_content_is_text_or_parts_and_parts_are_kept_as_a_tuple(content: Any) -> None:
    assert User(content).content == tuple(PARTS)


def test_a_list_changed_afterwards_changes_no_message() -> None:
    parts, uses = list(PARTS), [ToolUse("t")]
    user, answer = User(parts), Assistant("", uses)
    parts.clear()
    uses.clear()
    assert (user.content, answer.tool_calls) == (tuple(PARTS), (ToolUse("t"),))


def test_a_str_enum_is_plain_text_from_there_on() -> None:
    class Colour(str, Enum):  # noqa: UP042  # a StrEnum would be text of its own accord
        RED = "red"

    assert type(User(Colour.RED).content) is str
    assert User(Colour.RED) == User("red")


@pytest.mark.parametrize("content", [None, 7, b"bytes", {"a": 1}, ["text"], [Text("a"), "b"]])
@pytest.mark.parametrize("kind", [System, User, Assistant])
def test_any_other_content_is_refused_by_the_kind_of_message(kind: Any, content: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"the content of an? {kind.__name__} .*; give a str, or \[Text\("):
        kind(content)


@pytest.mark.anyio
@pytest.mark.parametrize("input", ["hi", [Text("hi"), IMAGE], User("hi", name="ann")], ids=["text", "parts", "user"])
async def test_the_input_of_a_run_is_text_or_parts_or_a_user_message(go: Go, input: Any) -> None:
    model = ScriptedModel(["a"])
    result = await go(App(), Agent(model=model), input)
    expected = input if isinstance(input, User) else User(input)
    assert model.calls[0].messages == (expected,)
    assert result.messages[0] == expected


@pytest.mark.anyio
@pytest.mark.parametrize("input", [None, 7, b"hi", {"a": 1}, Assistant("hi"), ["hi"]])
async def test_any_other_input_is_refused_with_the_fix(go: Go, input: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"; give (a str|text)"):
        await go(App(), Agent(model=ScriptedModel([])), input)


@pytest.mark.parametrize("kind", [Image, File])
def test_a_part_that_holds_nothing_is_refused_with_the_fix(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\(\) .*; give it .*data="):
        kind()


# immutability


@pytest.mark.parametrize(
    "thing", [*MESSAGES, *PARTS, Audio(b""), File(id="1"), ToolUse("t")], ids=lambda thing: type(thing).__name__
)
def test_messages_parts_and_tool_uses_are_immutable_and_compare_hash_copy_and_pickle_by_value(thing: Any) -> None:
    for name in [field.name for field in fields(thing)]:
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, "changed")
        with pytest.raises((FrozenInstanceError, TypeError)):
            delattr(thing, name)
    with pytest.raises((AttributeError, TypeError)):
        thing.unheard_of = 1
    for again in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
        assert again == thing
        assert hash(again) == hash(thing)


def test_roles_are_those_of_openai() -> None:
    assert [message.role for message in MESSAGES] == ["system", "user", "assistant", "tool"]


def test_messages_of_different_kinds_are_different() -> None:
    kinds: list[Message] = [System("a"), User("a"), Assistant("a"), ToolMessage("a", "1", "t")]
    assert all(one != other for one in kinds for other in kinds if one is not other)
    assert User("a") != User("a", name="ann")


# ToolUse and Assistant


def test_a_tool_use_is_a_name_with_arguments_and_an_id() -> None:
    assert (ToolUse("t").arguments, ToolUse("t").id) == ("{}", "")
    assert ToolUse("t", '{"a":', "9").arguments == '{"a":'  # as the model wrote it


def test_a_mapping_of_arguments_is_encoded_for_you() -> None:
    use = ToolUse("t", {"name": "é", "n": [1, None]})
    assert json.loads(use.arguments) == {"name": "é", "n": [1, None]}
    assert use == ToolUse("t", use.arguments)


def test_an_assistant_has_defaults_and_a_typed_replace() -> None:
    plain = Assistant("a")
    assert (plain.tool_calls, plain.reasoning, plain.finish_reason, plain.blocked) == ((), None, None, False)
    changed = plain.replace(reasoning="hm", tool_calls=[ToolUse("t")], blocked=True)
    assert changed == Assistant("a", (ToolUse("t"),), "hm", None, True)
    with pytest.raises(TypeError, match="colour"):
        plain.replace(colour="red")  # type: ignore[call-arg]


@pytest.mark.anyio
async def test_finish_reason_and_blocked_travel_with_history(go: Go) -> None:
    told = Assistant("no", finish_reason="safety", blocked=True)
    model = ScriptedModel(["a"])
    await go(App(), Agent(model=model), "u", history=[User("q"), told])
    assert model.calls[0].messages[1] == told


def test_a_message_in_a_message_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"content of a User is a message already .*; use it as it is"):
        User(User("hi"))  # type: ignore[arg-type]
