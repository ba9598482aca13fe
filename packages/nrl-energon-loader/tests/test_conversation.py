"""The cooker generic_conversation: what it takes, and what it says of what it does not."""

import base64
import copy
import pickle
from typing import Any

import pytest
from megatron.energon import CrudeSample
from nrl_energon_loader.cookers.conversation import ConversationError, cook_conversation
from nrl_energon_loader.encoders.base import MemberDecoder

USER = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
IMAGE = {"type": "image"}


def crude(conversation: Any, **members: Any) -> CrudeSample:
    keys = {"__key__": "0007", "__restore_key__": ("Webdataset", 7), "__subflavors__": {"kind": "x"}}
    return CrudeSample(**keys, **{"json": conversation, **members})


def cook(messages: Any, media: Any = None, **members: Any) -> Any:
    return cook_conversation(crude({"messages": messages, "media": media}, **members))


def test_a_conversation_keeps_what_energon_needs_and_what_a_template_reads() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "system", "content": ""}, USER, CALL, {"role": "tool", "content": "1", "tool_call_id": "a"}]
    sample = cook_conversation(crude({"messages": messages, "tools": tools}))
    assert (sample.messages, sample.tools, sample.media) == (messages, tools, [])
    assert (sample.__key__, sample.__restore_key__, sample.__subflavors__) == ("0007", ("Webdataset", 7), {"kind": "x"})
    assert cook([USER]).tools is None


def test_media_are_members_by_their_whole_names_or_values() -> None:
    members = {"left.png": b"L", "right.png": b"R", "png": b"P"}  # one suffix, three names
    uri = f"data:image/png;base64,{base64.b64encode(b'V').decode()}"
    parts = [IMAGE, {"type": "text", "text": "and"}, IMAGE]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": [IMAGE, IMAGE]}]
    sample = cook(messages, ["right.png", uri, "png", "left.png"], **members)
    assert sample.media == [b"R", b"V", b"P", b"L"]


def test_a_part_may_say_which_medium_it_means() -> None:
    content = [{"type": "image", "media": 0}, {"type": "image", "media": 1}]
    assert cook([{"role": "user", "content": content}], ["a", "b"], a=b"A", b=b"B").media == [b"A", b"B"]


def test_cooking_changes_no_crude_sample() -> None:
    sample = crude({"messages": [{"role": "user", "content": [IMAGE]}], "media": ["a"]}, a=b"A")
    before = copy.deepcopy(sample)
    cook_conversation(sample)
    assert sample == before


PART = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("messages", "media", "problem"),
    [
        (None, None, "messages is missing or empty"),
        ([], None, "messages is missing or empty"),
        ({}, None, "messages is a dict; allowed: a list"),
        ([3], None, "messages[0] is a int; allowed: an object"),
        ([{"content": "x"}], None, "messages[0].role is None; allowed: system, user, assistant, tool"),
        ([USER, {"role": "bot", "content": "x"}], None, "messages[1].role is 'bot'; allowed: system, user"),
        ([{"role": "user"}], None, "messages[0].content is a NoneType; allowed: a string or a list of parts"),
        ([{"role": "user", "content": 3}], None, "messages[0].content is a int"),
        ([{"role": "user", "content": ["x"]}], None, f"{PART} is 'x'; allowed: an object with type text"),
        ([{"role": "user", "content": [{"type": "text"}]}], None, f"{PART} is \"{{'type': 'text'}}\""),
        ([{"role": "user", "content": [{"type": "smell"}]}], None, "with one of the types image, video, audio"),
        ([{"role": "user", "content": [IMAGE]}], [], "media has 0 entries and the messages have 1 media parts"),
        ([USER], ["left.png"], "media has 1 entries and the messages have 0 media parts"),
        ([{"role": "user", "content": [IMAGE]}], "left.png", "media is a str; allowed: a list"),
        ([{"role": "user", "content": [IMAGE]}], [{}], "media[0] is a dict; allowed: a member's name or a data: URI"),
        ([{"role": "user", "content": [IMAGE]}], ["png"], "media[0] is 'png', which is no member; it has ['json', 'l"),
        ([{"role": "user", "content": [IMAGE]}], ["__key__"], "media[0] is '__key__', which is no member"),
        ([{"role": "user", "content": [IMAGE]}], ["data:image/png,x"], "which is not base64; allowed: as in 'data:"),
        ([{"role": "user", "content": [IMAGE]}], ["data:image/png;base64,?"], "which is not base64"),
        (
            [{"role": "user", "content": [{"type": "image", "media": 1}, IMAGE]}],
            ["left.png", "left.png"],
            f"{PART} refers to media 1; allowed: 0, the next one",
        ),
        (
            [{"role": "user", "content": [IMAGE, {"type": "image", "media": 0}]}],
            ["left.png"],
            "messages[0].content[1] refers to media 0; allowed: 1",
        ),
        ([USER, {"role": "tool", "content": "x"}], None, "messages[1] is the result of tool call None, which the assi"),
        ([CALL, {"role": "tool", "content": "x", "tool_call_id": "b"}], None, "'b', which the assistant did not make"),
        ([CALL, *[{"role": "tool", "content": "x", "tool_call_id": "a"}] * 2], None, "messages[2] is the result of"),
        ([CALL, USER, {"role": "tool", "content": "x", "tool_call_id": "a"}], None, "allowed: none here"),
    ],
)
def test_what_is_no_conversation_is_an_error_that_names_the_sample(messages: Any, media: Any, problem: str) -> None:
    with pytest.raises(ConversationError) as caught:
        cook(messages, media, **{"left.png": b"L"})
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.key == "0007"
    assert problem in error.problem
    assert str(error).startswith("sample '0007': ")


def test_json_that_is_missing_or_no_object_is_told() -> None:
    with pytest.raises(ConversationError, match=r"there is no member 'json'; it has \['a\.jsonl'\]"):
        cook_conversation(CrudeSample({"__key__": "k", "a.jsonl": b""}))
    with pytest.raises(ConversationError, match="its JSON is a list; allowed: an object with 'messages'"):
        cook_conversation(crude([USER]))


def test_results_answer_calls_by_id_or_by_order() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}, {"function": {}}]}
    results = [{"role": "tool", "content": "x", **one} for one in ({"tool_call_id": "b"}, {}, {})]
    assert len(cook([calls, *results]).messages) == 4


def test_the_decoder_parses_json_and_text_and_leaves_the_rest() -> None:
    raw = {"__key__": "k", "json": b'{"a": [1]}', "meta.json": b"2", "txt": "ä".encode(), "png": b"P", "mp4": b"M"}
    decoder = MemberDecoder()
    assert decoder(raw) == {"__key__": "k", "json": {"a": [1]}, "meta.json": 2, "txt": "ä", "png": b"P", "mp4": b"M"}
    assert decoder.decode("0001.meta.json", b"[3]") == [3]
    assert decoder.config() == {"members": "json and txt"}
