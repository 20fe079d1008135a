"""OpenAI's protocol as pure code (O2, O3): what is sent, and every odd way in which servers answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middlechain.chat import ChatCall, ChatReply, Settings
from middlechain.errors import (
    BadRequest,
    ConfigurationError,
    IncompleteReply,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
)
from middlechain.events import Delta, ReasoningDelta, TextDelta
from middlechain.limits import Usage
from middlechain.messages import (
    Assistant,
    Audio,
    File,
    Image,
    Message,
    System,
    Text,
    ToolMessage,
    ToolUse,
    User,
)
from middlechain.models.failure import error_for, retry_after
from middlechain.models.loose import parse
from middlechain.models.request import request_body
from middlechain.models.wire import Assembler, Events, read_reply
from middlechain.tools import Tool


class FakeTool:
    """What a request needs of a tool."""

    name = "add"
    description = "Add two numbers."
    schema: ClassVar = {"type": "object", "properties": {"a": {"type": "integer"}}}


TOOL = cast("Tool", FakeTool())


def body_of(*messages: Message, tools: Sequence[Tool] = (), **settings: Any) -> dict[str, Any]:
    return request_body(ChatCall(messages, tuple(tools), Settings(**settings)))


def sent(message: Message) -> dict[str, Any]:
    data = body_of(message)["messages"][0]
    assert isinstance(data, dict)
    return data


def chunk(delta: object = None, finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def calls_chunk(*calls: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return chunk({"tool_calls": list(calls)}, finish)


def piece(
    arguments: object = None, name: str | None = None, id: str | None = None, index: int | None = None
) -> dict[str, Any]:
    data: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    return data | ({} if id is None else {"id": id}) | ({} if index is None else {"index": index})


def assemble(*chunks: object, lenient: bool = False) -> tuple[list[Delta], ChatReply]:
    assembler = Assembler(lenient=lenient, who="m")
    deltas = [delta for item in chunks for delta in assembler.feed(item)]
    return deltas, assembler.finish()


def reply_of(*chunks: object, lenient: bool = False) -> ChatReply:
    return assemble(*chunks, lenient=lenient)[1]


def calls_of(*pieces: dict[str, Any]) -> tuple[ToolUse, ...]:
    return reply_of(*[calls_chunk(item) for item in pieces], chunk(finish="tool_calls")).tool_calls


def completion(finish: str | None = "stop", usage: object = None, **message: object) -> dict[str, Any]:
    return {"model": "m-1", "choices": [{"message": message, "finish_reason": finish}], "usage": usage}


# ---- What is sent


def test_o2_each_kind_of_message_is_sent_as_openai_writes_it() -> None:
    body = body_of(
        System("be brief"),
        User("hi"),
        Assistant("", [ToolUse("add", {"a": 1}, "c1")]),
        ToolMessage("2", "c1", "add"),
    )
    assert body == {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "content": "2", "tool_call_id": "c1"},
        ]
    }


def test_o2_what_only_the_library_knows_of_a_message_is_not_sent() -> None:
    assert set(sent(Assistant("no", finish_reason="safety", blocked=True))) == {"role", "content"}
    assert set(sent(ToolMessage("no", "c1", "add", is_error=True))) == {"role", "content", "tool_call_id"}


def test_b48_reasoning_is_sent_back_with_its_message() -> None:
    assert sent(Assistant("", [ToolUse("add", "{}", "c1")], "R"))["reasoning_content"] == "R"
    assert "reasoning_content" not in sent(Assistant("hi"))


@pytest.mark.parametrize("broken", ['{"q":', "[1]", '"x"', "null", "3", "", "}", "[" * 100_000 + "}"])
def test_b44_arguments_that_are_no_object_are_sent_back_as_an_empty_one(broken: str) -> None:
    call = sent(Assistant("", [ToolUse("add", broken, "c1")]))["tool_calls"][0]
    assert call["function"]["arguments"] == "{}"


def test_b44_arguments_that_are_an_object_are_sent_back_to_the_letter() -> None:
    call = sent(Assistant("", [ToolUse("add", '{ "q":1 } ', "c1")]))["tool_calls"][0]
    assert call["function"]["arguments"] == '{ "q":1 } '


def test_a1_a_name_that_openai_would_refuse_is_made_to_fit() -> None:
    assert sent(User("hi", "Support Agent <1>"))["name"] == "Support_Agent_1_"
    assert sent(User("hi", "Jürgen"))["name"] == "Jürgen"
    assert "name" not in sent(User("hi", ""))


def test_o2_parts_are_sent_as_openai_writes_them() -> None:
    content = sent(
        User(
            [
                Text("look"),
                Image("https://example.org/a.png", detail="low"),
                Image(data=b"\x01", media_type="image/jpeg"),
                Audio(b"\x02", "mp3"),
                File(b"\x03", "a.pdf"),
                File(b"\x03"),
                File(id="f1"),
            ]
        )
    )["content"]
    assert content == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AQ=="}},
        {"type": "input_audio", "input_audio": {"data": "Ag==", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,Aw==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,Aw=="}},
        {"type": "file", "file": {"file_id": "f1"}},
    ]


@pytest.mark.parametrize("part", [Image, File])
def test_a_part_with_nothing_in_it_is_refused(part: type[Image | File]) -> None:
    with pytest.raises(ConfigurationError, match="nothing; give it"):
        part()


def test_o2_settings_are_sent_where_they_are_set() -> None:
    body = body_of(
        User("hi"), temperature=0, top_p=1.0, max_tokens=5, stop=("END",), seed=0, extra={"seed": 7, "x": None}
    )
    del body["messages"]
    assert body == {"temperature": 0, "top_p": 1.0, "max_tokens": 5, "stop": ["END"], "seed": 7, "x": None}
    assert body_of(User("hi"), stop="END")["stop"] == "END"


def test_o2_tools_are_sent_with_what_is_said_about_them() -> None:
    body = body_of(User("hi"), tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "add", "description": "Add two numbers.", "parameters": FakeTool.schema},
        }
    ]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)


def test_o2_a_tool_named_as_choice_takes_the_form_of_an_object() -> None:
    body = body_of(User("hi"), tools=[TOOL], tool_choice="add")
    assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert "parallel_tool_calls" not in body


def test_o2_without_tools_nothing_is_said_about_them() -> None:
    body = body_of(User("hi"), tool_choice="auto", parallel_tool_calls=True)
    assert set(body) == {"messages"}


# ---- Whole completions


def test_o2_a_whole_completion_is_read() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "cost": 0.5,
    }
    reply = read_reply(completion(usage=usage, content="hi", reasoning_content="R"))
    assert reply == ChatReply("hi", (), "R", Usage(10, 5, 4, 3, 15, cost=0.5), "stop", "m-1")


def test_o2_usage_that_nobody_reported_is_none() -> None:
    assert read_reply(completion(content="hi")).usage == Usage()
    some = read_reply(
        completion(usage={"prompt_tokens": 1, "cost": math.nan, "prompt_cache_hit_tokens": 0}, content="")
    )
    assert some.usage == Usage(input_tokens=1, cached_tokens=0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"q": 1}, '{"q": 1}'), ("", "{}"), ("  ", "{}"), (None, "{}"), ('{"q":', '{"q":'), ([1], "[1]"), ("[1]", "[1]")],
)
def test_b44_arguments_of_any_shape_become_text(arguments: object, text: str) -> None:
    whole = read_reply(completion(tool_calls=[piece(arguments, "f", "c1")]))
    assert whole.tool_calls == (ToolUse("f", text, "c1"),)
    assert calls_of(piece(arguments, "f", "c1")) == whole.tool_calls


@pytest.mark.parametrize("finish", ["stop", None, "function_call", "eos", "tool_calls"])
def test_b45_tool_calls_are_read_under_any_finish_reason(finish: str | None) -> None:
    reply = read_reply(completion(finish, content=None, tool_calls=[piece("{}", "f", "c1")]))
    assert reply.tool_calls == (ToolUse("f", "{}", "c1"),)
    assert reply.finish_reason == ("tool_calls" if finish == "function_call" else finish)
    assert reply_of(calls_chunk(piece("{}", "f", "c1"), finish=finish), lenient=True).tool_calls == reply.tool_calls


def test_b45_a_reply_may_say_tool_calls_and_have_none() -> None:
    assert read_reply(completion("tool_calls", content="hi")) == ChatReply(
        "hi", (), finish_reason="tool_calls", model="m-1"
    )


@pytest.mark.parametrize("id", ["x", ""])
def test_b47_ids_are_passed_through_as_they_are(id: str) -> None:
    pieces = [piece('{"a":1}', "f", id), piece('{"a":2}', "f", id)]
    uses = (ToolUse("f", '{"a":1}', id), ToolUse("f", '{"a":2}', id))
    assert read_reply(completion(tool_calls=pieces)).tool_calls == uses
    assert reply_of(calls_chunk(*pieces, finish="stop")).tool_calls == uses
    assert calls_of(*pieces) == uses
    assert calls_of(*[item | {"index": place} for place, item in enumerate(pieces)]) == uses


def test_b47_an_id_that_is_a_number_becomes_text() -> None:
    call = piece("{}", "f") | {"id": 7}
    assert read_reply(completion(tool_calls=[call])).tool_calls == (ToolUse("f", "{}", "7"),)


def test_b48_content_null_is_an_empty_text() -> None:
    assert read_reply(completion(content=None)).text == ""


def test_b48_reasoning_is_not_part_of_the_answer() -> None:
    reply = read_reply(completion(content=None, reasoning="R", tool_calls=[piece("{}", "f", "c1")]))
    assert (reply.text, reply.reasoning) == ("", "R")
    deltas, reply = assemble(chunk({"reasoning_content": "R1", "reasoning": "R1"}), chunk({"reasoning": "R2"}, "stop"))
    assert deltas == [ReasoningDelta("R1"), ReasoningDelta("R2")]
    assert (reply.text, reply.reasoning) == ("", "R1R2")


def test_o2_content_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking"}, 3, {"type": "text", "text": "b"}]
    assert read_reply(completion(content=parts)).text == "ab"


def test_o2_a_refusal_is_the_text_where_there_is_no_other() -> None:
    assert read_reply(completion(content=None, refusal="I will not")) == ChatReply(
        "I will not", finish_reason="refusal", model="m-1"
    )
    assert read_reply(completion(content="hi", refusal="I will not")).text == "hi"


def test_o2_a_streamed_refusal_is_the_text_where_there_is_no_other() -> None:
    deltas, reply = assemble(chunk({"refusal": "I will"}), chunk({"refusal": " not"}), chunk(finish="stop"))
    assert deltas == [TextDelta("I will"), TextDelta(" not")]
    assert (reply.text, reply.finish_reason) == ("I will not", "refusal")
    deltas, reply = assemble(chunk({"content": "hi"}), chunk({"refusal": "no"}, "stop"))
    assert (deltas, reply.text, reply.finish_reason) == ([TextDelta("hi")], "hi", "refusal")


@pytest.mark.parametrize(
    ("word", "reason"), [("content_filter", "safety"), ("length", "length"), ("eos", "eos"), ("", None)]
)
def test_o2_finish_reasons_are_translated_or_passed_on(word: str, reason: str | None) -> None:
    assert read_reply(completion(word, content="hi")).finish_reason == reason


@pytest.mark.parametrize("data", [{}, {"choices": []}, {"choices": None}, [1], None, "hi"])
def test_b49_a_completion_without_a_choice_is_incomplete(data: object) -> None:
    with pytest.raises(IncompleteReply, match="without a choice; ask again"):
        read_reply(data, who="m")


# ---- Streams: tool calls (B41)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([piece('{"a":', "add", "c1"), piece("1}")], id="a-no-index"),
        pytest.param([piece('{"a":', "add", "c1", 0), *[piece(p, "add", "c1", 0) for p in ("1", "", "}", "")]], id="d"),
        pytest.param([piece('{"a":', "add", "c1", 0), piece("1}", None, "", 0)], id="e-later-id-empty"),
        pytest.param([piece(None, "add", "c1", 0), piece('{"a":1}', index=0)], id="f-null-first"),
        pytest.param([piece("", "a", "c1", 0), piece("", "dd", index=0), piece('{"a":1}', index=0)], id="g-split-name"),
        pytest.param([piece("", "a", "c1"), piece("", "dd"), piece('{"a":1}')], id="g-split-name-no-index"),
        pytest.param([piece("", "a", "c1", 0), piece('{"a":1}', "add", index=0)], id="g-growing-name"),
        pytest.param([piece(None, "add", index=0), piece('{"a":1}', None, "c1", 0)], id="late-id"),
        pytest.param([piece('{"a":', "add", "c1"), piece("1}", index=0)], id="late-index"),
        pytest.param([piece('{"a":1}', "add", "c1", 0), piece('{"a":1}', "add", "c1", 0)], id="whole-call-repeated"),
    ],
)
def test_b41_one_call_is_put_together(pieces: list[dict[str, Any]]) -> None:
    (use,) = calls_of(*pieces)
    assert (use.id, use.name, json.loads(use.arguments)) == ("c1", "add", {"a": 1})


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([piece('{"a":1}', "f", "c1"), piece('{"a":2}', "g", "c2")], id="b-complete"),
        pytest.param(
            [piece('{"a":', "f", "c1"), piece("1}"), piece('{"a":', "g", "c2"), piece("2}")], id="c-in-pieces"
        ),
        pytest.param([piece('{"a":1}', "f", "c1", 0), piece('{"a":2}', "g", "c2", 0)], id="one-index"),
        pytest.param(
            [piece("", "f", "c1", 0), piece('{"a":1}', index=0), piece("", "g", "c2", 0), piece('{"a":2}', index=0)],
            id="one-index-in-pieces",
        ),
        pytest.param(
            [piece('{"a":', "f", "c1", 0), piece('{"a":', "g", "c2", 1), piece("1}", index=0), piece("2}", index=1)],
            id="interleaved",
        ),
        pytest.param(
            [piece('{"a":', "f", "c1"), piece('{"a":', "g", "c2"), piece("1}", id="c1"), piece("2}", id="c2")],
            id="interleaved-by-id",
        ),
    ],
)
def test_b41_two_calls_are_kept_apart(pieces: list[dict[str, Any]]) -> None:
    assert calls_of(*pieces) == (ToolUse("f", '{"a":1}', "c1"), ToolUse("g", '{"a":2}', "c2"))


@pytest.mark.parametrize("index", [None, 0])
def test_b47_calls_without_any_id_are_kept_apart(index: int | None) -> None:
    uses = (ToolUse("f", '{"a":1}'), ToolUse("g", "{}"))
    assert calls_of(piece('{"a":1}', "f", index=index), piece("", "g", index=index)) == uses
    assert calls_of(piece('{"a":1}', "f", index=index), piece("{}", "g", index=index)) == uses


def test_b47_calls_in_one_chunk_without_id_index_or_arguments_are_kept_apart() -> None:
    reply = reply_of(calls_chunk(piece("", "f"), piece("", "g"), finish="tool_calls"))
    assert reply.tool_calls == (ToolUse("f"), ToolUse("g"))


def test_b41_an_empty_piece_is_no_call() -> None:
    assert reply_of(calls_chunk({}, finish="stop")).tool_calls == ()
    assert calls_of(piece("{}", "f", "c1"), {}) == (ToolUse("f", "{}", "c1"),)


# ---- Streams: chunks without a choice, usage (B43)


@pytest.mark.parametrize("empty", [[], None])
@pytest.mark.parametrize("twice", [False, True])
def test_b43_usage_in_a_chunk_of_its_own_counts_once(empty: object, twice: bool) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    finish = chunk(None, "stop", usage=usage) if twice else chunk(None, "stop", usage=None)
    deltas, reply = assemble(
        {"choices": empty},
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "hel"}),
        chunk({"content": "lo"}, model="m-1"),
        finish,
        {"choices": empty, "usage": usage},
        {"choices": empty, "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    )
    assert deltas == [TextDelta("hel"), TextDelta("lo")]
    assert reply == ChatReply("hello", usage=Usage(10, 5), finish_reason="stop", model="m-1")


def test_b43_usage_that_never_comes_is_none() -> None:
    assert reply_of(chunk({"content": "hi"}, "stop")).usage == Usage()


def test_o2_of_several_choices_the_first_is_the_reply() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]}
    assert reply_of(chunk({"content": "A"}), other, chunk(None, "stop"), other).text == "A"


# ---- Streams that break off, and errors inside them (B49)


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [chunk({"content": "half an ans"})],
        [calls_chunk(piece('{"a":', "add", "c1", 0))],
        [3],
        [None],
        [{"choices": {}}],
    ],
)
def test_b49_a_stream_without_a_finish_reason_is_incomplete(chunks: list[object]) -> None:
    with pytest.raises(IncompleteReply, match="'m' ended without a finish reason; ask again") as caught:
        assemble(*chunks)
    assert caught.value.retryable


def test_b49_a_lenient_reader_takes_it_for_finished_unless_nothing_came() -> None:
    assert reply_of(chunk({"content": "hi"}), lenient=True) == ChatReply("hi", finish_reason="stop")
    with pytest.raises(IncompleteReply):
        assemble(lenient=True)


@pytest.mark.parametrize(
    ("data", "kind", "status", "words"),
    [
        ({"error": {"message": "quota", "code": 429}}, RateLimited, 429, "quota"),
        ({"error": {"message": "quota", "code": "429"}}, RateLimited, 429, "quota"),
        ({"error": {"message": "busy", "type": "rate_limit_error", "code": None}}, RateLimited, 429, "busy"),
        ({"error": {"message": "slow", "type": "timeout"}}, ModelTimeout, 408, "slow"),
        ({"error": {"message": "boom", "type": "server_error"}}, ModelUnavailable, 500, "boom"),
        ({"error": {"message": "bad", "code": True, "type": "invalid_request_error"}}, BadRequest, 400, "bad"),
        ({"object": "error", "message": "too long", "code": 400}, BadRequest, 400, "too long"),
        ({"choices": None, "error_message": "context too long"}, ModelError, None, "context too long"),
        ({"error": "out of memory"}, ModelError, None, "out of memory"),
        ({"error": {"message": "odd", "code": 7, "type": "odd"}}, ModelError, None, "odd"),
        ({"error": True, "message": "odd"}, ModelError, None, "odd"),
        ({"error": {"x": 1}}, ModelError, None, "it gave no reason"),
        ({"choices": [{"error": {"message": "upstream", "code": 502}}]}, ModelUnavailable, 502, "upstream"),
    ],
)
def test_b49_an_error_inside_a_good_answer_is_raised_with_the_servers_words(
    data: dict[str, Any], kind: type[ModelError], status: int | None, words: str
) -> None:
    for read in (assemble, lambda item: read_reply(item, who="m")):
        with pytest.raises(ModelError, match=words) as caught:
            read(data)
        assert (type(caught.value), caught.value.status) == (kind, status)


def test_b49_what_came_before_an_error_was_given_out() -> None:
    assembler = Assembler()
    assert assembler.feed(chunk({"content": "hi"})) == [TextDelta("hi")]
    with pytest.raises(ModelError, match="context too long"):
        assembler.feed({"choices": None, "error_message": "context too long"})


def test_b44_arguments_nested_without_end_are_an_incomplete_reply() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(IncompleteReply, match="nested too deep"):
        assemble(calls_chunk(piece(deep, "f", "c1")))
    while deep:  # or freeing it would overflow the stack on its own
        deep = deep["a"]


# ---- The bytes of a stream


def read(*parts: bytes) -> list[object]:
    events = Events()
    return [item for part in parts for item in events.feed(part)] + list(events.close())


def test_o3_an_event_stream_is_read() -> None:
    assert read(b': hello\nid: 3\ndata: {"a":\ndata: 1}\n\ndata:{"b":2}\n\n\ndata: [DONE]\n\n') == [{"a": 1}, {"b": 2}]


def test_o3_a_last_event_without_its_blank_line_counts() -> None:
    assert read(b'data: {"a":1}') == [{"a": 1}]
    assert read(b'data: {"a":1}\n\ndata: {"b') == [{"a": 1}]


def test_o3_nothing_follows_done() -> None:
    assert read(b'data: [DONE]\n\ndata: {"a":1}\n\ndata: {"b":2}') == []
    assert read(b"data: [DONE]\n\n", b'data: {"a":1}\n\n', b'data: {"b":2}') == []


def test_o3_done_is_seen_when_it_comes() -> None:
    events = Events()
    assert list(events.feed(b"data: [DONE]\n")) == []
    assert not events.done
    assert list(events.feed(b"\n")) == []
    assert events.done


def test_b49_an_event_named_error_is_an_error() -> None:
    assert read(b'event: error\ndata: {"message": "boom"}\n\n') == [{"error": {"message": "boom"}}]
    assert read(b'event: error\ndata: {"error": "boom"}\n\ndata: {}\n\n') == [{"error": "boom"}, {}]


@pytest.mark.parametrize("text", [b'{"a":', b"\xff\xfe", b"<html>", b"[" * 100_000])
def test_b49_a_chunk_that_is_not_json_is_an_incomplete_reply(text: bytes) -> None:
    events = Events().feed(b'data: {"a":1}\n\ndata: ' + text + b"\n\n")
    assert next(events) == {"a": 1}
    with pytest.raises(IncompleteReply, match="is not JSON"):
        next(events)


STREAM = [
    chunk({"role": "assistant", "reasoning_content": "Hm"}, model="m-1"),
    chunk({"content": "Grüße "}),
    chunk({"content": "\n🎈"}),
    calls_chunk(piece('{"a":', "add", "c1", 0)),
    calls_chunk(piece("1}", index=0)),
    chunk(None, "tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
]
KNOWN = ChatReply("Grüße \n🎈", (ToolUse("add", '{"a":1}', "c1"),), "Hm", Usage(10, 5), "tool_calls", "m-1")


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 900)))
def test_o3_any_cut_of_a_stream_gives_the_same_reply(newline: str, cuts: list[int]) -> None:
    lines = [f"data: {json.dumps(item, ensure_ascii=False)}{newline}{newline}" for item in STREAM]
    data = "".join([f": ping{newline}{newline}", *lines, f"data: [DONE]{newline}{newline}"]).encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(places)]
    deltas, reply = assemble(*read(*parts))
    assert reply == KNOWN
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == reply.text


WORDS = st.sampled_from(
    [
        *["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index", "id"],
        *["finish_reason", "error", "code", "type", "text", "refusal", "reasoning", "429", "stop"],
        *["usage", "prompt_tokens", "prompt_tokens_details", "cached_tokens"],
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
CHOICES = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({}, optional={"delta": JSON, "message": JSON, "finish_reason": JSON}), max_size=2
        )
    }
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"index": JSON, "id": JSON, "function": st.dictionaries(WORDS, JSON, max_size=3)}
    ),
    max_size=3,
)


def calls_in_a_chunk(calls: list[Any]) -> dict[str, Any]:
    return calls_chunk(*calls)


@given(st.lists(JSON | CHOICES | st.builds(calls_in_a_chunk, CALLS), max_size=4), st.booleans())
def test_o3_garbage_raises_nothing_but_a_model_error(chunks: list[object], lenient: bool) -> None:
    readers: list[Callable[[], ChatReply]] = [
        lambda: reply_of(*chunks, lenient=lenient),
        lambda: read_reply(chunks[0] if chunks else None),
    ]
    for read_it in readers:
        try:
            reply = read_it()
        except ModelError:
            continue
        assert isinstance(reply.text, str)
        assert all(isinstance(use.arguments, str) for use in reply.tool_calls)


@given(st.lists(st.binary() | st.sampled_from([b"data: ", b"\n\n", b"\r", b"{}", b"[DONE]", b"event: error\n"])))
def test_o3_garbage_bytes_raise_nothing_but_a_model_error(parts: list[bytes]) -> None:
    try:
        assemble(*read(*parts))
    except ModelError:
        return


def test_o3_json_is_parsed_or_refused() -> None:
    assert parse(b"[1]", "it") == [1]
    with pytest.raises(IncompleteReply, match="it is not JSON: b'<html>'; ask again, or check base_url"):
        parse(b"<html>", "it")


# ---- What a server complains of


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, RateLimited, True),
        (408, ModelTimeout, True),
        (500, ModelUnavailable, True),
        (503, ModelUnavailable, True),
        (529, ModelUnavailable, True),
        (400, BadRequest, False),
        (401, BadRequest, False),
        (422, BadRequest, False),
        (302, ModelError, False),
        (None, ModelError, False),
    ],
)
def test_o2_a_status_says_what_kind_of_error_it_is(status: int | None, kind: type[ModelError], retryable: bool) -> None:
    error = error_for(status, {"error": {"message": "words"}}, who="m")
    assert type(error) is kind
    assert (error.status, error.retryable, error.retry_after) == (status, retryable, None)
    assert str(error).startswith("the server of the model 'm' ")
    assert ": words; " in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("plain", "plain"),
        ({"message": "bare"}, "bare"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"msg": "Field required"}, {"msg": "no int"}]}, "Field required, no int"),
        ({"error": {"error": {"message": "nested"}}}, "nested"),
        ({}, "(it gave no reason)"),
        (None, "(it gave no reason)"),
    ],
)
def test_o2_an_error_says_what_the_server_says(body: object, words: str) -> None:
    assert str(error_for(400, body)) == f"the model's server answered 400: {words}; change the request as it says"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 20.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_o2_the_time_to_wait_is_a_number_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    now = 1445412460.0  # 07:27:40 of that day
    assert retry_after(headers, now) == seconds
    assert error_for(429, None, headers, now=now).retry_after == seconds
