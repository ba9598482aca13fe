"""What tags may hold."""

import enum
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nrl_dump.tags import encode_tag

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def encodable(value) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(st.dictionaries(st.text(), json_values).filter(encodable))
def test_what_json_holds_comes_back(tag: dict) -> None:
    written = encode_tag(tag, "s", "constants")
    assert b"\n" not in written
    back = json.loads(written)
    assert back == tag
    assert repr(back) == repr(tag)  # 1, 1.0 and True are different things


def test_integers_of_any_size_beside_text_and_non_finite_numbers() -> None:
    tag = {"big": 10**40, "neg": -(2**63) - 1, "edge": 2**64, "fits": 2**64 - 1, "x": math.inf, "text": "\u2028é"}
    assert json.loads(encode_tag(tag, "s", "constants")) == tag
    assert json.loads(encode_tag(tag, "s", "strings")) == {**tag, "x": "Infinity"}
    assert json.loads(encode_tag(tag, "s", "null")) == {**tag, "x": None}


def test_numpy_scalars_and_0d_tensors_are_numbers() -> None:
    class Level(enum.IntEnum):
        HIGH = 3

    tag = {
        "i": np.int64(-3),
        "u": np.uint64(2**64 - 1),
        "f": np.float32(0.5),
        "d": np.float64(0.1),
        "b": np.bool_(True),
        "t": torch.tensor(7),
        "g": torch.tensor(0.25, requires_grad=True),
        "bf": torch.tensor(1.5, dtype=torch.bfloat16),
        "tb": torch.tensor(False),
        "s": np.str_("x"),
        "e": Level.HIGH,
        "tuple": (1, 2),
    }
    back = json.loads(encode_tag(tag, "s", "constants"))
    assert repr(back) == (
        "{'i': -3, 'u': 18446744073709551615, 'f': 0.5, 'd': 0.1, 'b': True, 't': 7, 'g': 0.25, 'bf': 1.5, "
        "'tb': False, 's': 'x', 'e': 3, 'tuple': [1, 2]}"
    )


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1, 2}, "tags.k"),
        ({"deep": [0, {"x": b"bytes"}]}, r"tags.k.deep\[1\].x"),
        (object(), "tags.k"),
        (1 + 2j, "tags.k"),
        (np.complex64(1), "tags.k"),
        (torch.tensor(1j), "tags.k"),
        (np.array([1]), "tags.k"),
        (np.datetime64("2020-01-01"), "tags.k"),
        (torch.tensor([1]), "tags.k"),
        ({"n": [10**5000]}, r"tags.k.n\[0\]"),
        ({3: "x"}, "key of tags.k"),
        ("\ud800", "tags.k"),
        ({"\udfff": 1}, "key of tags.k"),
    ],
)
def test_anything_else_is_refused_with_sample_and_path(value, path: str) -> None:
    with pytest.raises(ValueError, match=f"{path} of sample 'the id'"):
        encode_tag({"k": value}, "the id", "constants")


def test_a_tag_that_holds_itself_is_refused() -> None:
    tag: dict = {}
    tag["me"] = [tag]
    with pytest.raises(ValueError, match="at most 100 levels"):
        encode_tag(tag, "s", "constants")


@pytest.mark.parametrize("tag", [None, [], "x", 1])
def test_a_tag_is_a_dict(tag) -> None:
    with pytest.raises(ValueError, match=r"tags of sample 's' is .*a dict is needed"):
        encode_tag(tag, "s", "constants")
