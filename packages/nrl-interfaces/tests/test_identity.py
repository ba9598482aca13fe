import copy
import enum
import json
import os
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nrl_interfaces import identity
from nrl_interfaces.identity import REDACTED, IdentityValueError, canonical_json, differences, fingerprint, redact

# Few, small values: two drawn trees shall often be nearly the same.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.sampled_from(["a", "b", "a.b", "<missing>"])
LEAVES = st.none() | st.booleans() | st.sampled_from([0, 1, 0.0, -0.0, 1.0, 10**20]) | TEXT
TREES = st.recursive(
    LEAVES | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


def test_canonical_json_is_sorted_compact_utf8():
    assert canonical_json({"b": [1, 1.0, True, None, (2,)], "a": "é\u2028"}) == (
        '{"a":"é\u2028","b":[1,1.0,true,null,[2]]}'.encode()
    )
    assert canonical_json([]) == b"[]"


def test_fingerprints_are_fixed_for_ever():
    # sha256sum of the bytes `{}` and `{"lr":1e-05,"n":[1,1.0,true,null,"é"]}`
    assert fingerprint({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert (
        fingerprint({"lr": 1e-05, "n": [1, 1.0, True, None, "é"]})
        == "7dad16afaf3ec769be86877fa5439ad90e01ac5a0b97be5a742a48121ab03b31"
    )


def test_values_that_python_calls_equal_stay_apart():
    values = [True, 1, 1.0, "1", [1], {"1": 1}, 0.0, -0.0, 0, False, None, "", [], {}, "null"]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_tuples_and_containers_of_other_classes_are_plain_lists_and_dicts():
    assert fingerprint((1, (2,))) == fingerprint([1, [2]])
    assert fingerprint(types.SimpleNamespace(a=1).__dict__) == fingerprint({"a": 1})
    assert differences((1, 2), [1, 2]) == []


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"a": {"b": [1, float("nan")]}}, "a.b[1]", "nan; allowed: finite"),
        ([float("-inf")], "[0]", "-inf; allowed: finite"),
        (Path("/x"), "<root>", "a PosixPath; allowed"),
        ({"c": Color.RED}, "c", "a Color; allowed"),
        ({"c": Level.LOW}, "c", "a Level; allowed"),
        ({"c": np.float64(1)}, "c", "a float64; allowed"),
        ({"c": np.int64(1)}, "c", "a int64; allowed"),
        ({"c": {1, 2}}, "c", "a set; allowed"),
        ({"c": b"x"}, "c", "a bytes; allowed"),
        ({"c": {1: 2}}, "c", "a dict with the key 1; allowed: string keys"),
        ({Color.RED: 1}, "<root>", "a dict with the key <Color.RED: 'red'>; allowed: string keys"),
        ({"x.y": {"z": "\ud800"}}, '["x.y"].z', 'with half of a surrogate pair'),
        ({"\ud800": 1}, '["\\ud800"]', "with half of a surrogate pair"),
        ({"n": 10**5000}, "n", "an int of 16610 bits; allowed"),
    ],
)  # fmt: skip
def test_what_is_no_plain_json_is_refused_with_its_path(value, path, problem):
    for act in (canonical_json, fingerprint, lambda v: differences(v, {}), lambda v: differences({}, v)):
        with pytest.raises(IdentityValueError, match=re.escape(problem)) as caught:
            act(value)
        assert caught.value.path == path
        assert str(caught.value).startswith(f"{path} is ")


def test_depth_is_bounded_and_circles_are_refused():
    circle = {}
    circle["again"] = [circle]
    for act in (canonical_json, redact):
        with pytest.raises(ValueError, match=r"^again\[0\]\.again.* is nested too deep, or in a circle; allowed: 200"):
            act(circle)
    deep = 1
    for _ in range(200):
        deep = [deep]
    other = json.loads(canonical_json(deep).replace(b"1", b"2"))
    assert differences(deep, other) == ["[0]" * 200 + " 1 -> 2"]
    assert redact(deep) == deep


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(IdentityValueError("a.b", "nan; allowed: finite numbers")))
    assert (error.path, error.problem) == ("a.b", "nan; allowed: finite numbers")
    assert str(error) == "a.b is nan; allowed: finite numbers"


@pytest.mark.parametrize(
    ("saved", "current", "lines"),
    [
        ({"batch_size": 2}, {"batch_size": 3}, ["batch_size 2 -> 3"]),
        ({"a": {"b": [0, 0, 0, 1]}}, {"a": {"b": [0, 0, 0, 2]}}, ["a.b[3] 1 -> 2"]),
        ({"a": 1}, {}, ["a 1 -> <missing>"]),
        ({}, {"a": None}, ["a <missing> -> null"]),
        ({"a": "<missing>"}, {}, ['a "<missing>" -> <missing>']),
        ({"a": {"b": 1, "c": [2]}}, {}, ["a.b 1 -> <missing>", "a.c[0] 2 -> <missing>"]),
        ({}, {"a": {}, "b": []}, ["a <missing> -> {}", "b <missing> -> []"]),
        ({"a": {}}, {"a": {"b": {}}}, ["a.b <missing> -> {}"]),
        ({"a": {}}, {"a": []}, ["a {} -> []"]),
        ({"a": {"0": 1}}, {"a": [1]}, ['a {"0":1} -> [1]']),
        ({"a": 1}, {"a": {"b": 1}}, ['a 1 -> {"b":1}']),
        ({"a": 1}, {"a": "1"}, ['a 1 -> "1"']),
        ({"a": True}, {"a": 1}, ["a true -> 1"]),
        ({"a": 1}, {"a": 1.0}, ["a 1 -> 1.0"]),
        ({"a": 0.0}, {"a": -0.0}, ["a 0.0 -> -0.0"]),
        ([1, 2], [1, 2, 3], ["[2] <missing> -> 3"]),
        (1, 2, ["<root> 1 -> 2"]),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, ["a 1 -> 2", "b 1 -> 2"]),
        ({"a.b": 1}, {"a": {"b": 1}}, ["a.b <missing> -> 1", '["a.b"] 1 -> <missing>']),
        ({"": {"é 1": 1}}, {"": {"é 1": 2}}, ['[""]["é 1"] 1 -> 2']),
        ({"a[0]": 1}, {"a": [1]}, ["a[0] <missing> -> 1", '["a[0]"] 1 -> <missing>']),
        ({"k\n": "x\ny"}, {"k\n": "x\u2028y"}, [r'["k\n"] "x\ny" -> "x\u2028y"']),
    ],
)
def test_differences_are_one_line_a_leaf(saved, current, lines):
    assert differences(saved, current) == lines


def test_long_values_are_cut_to_where_they_differ():
    (line,) = differences({"a": "x" * 1000}, {"a": "y" * 1000})
    old, new = line.removeprefix("a ").split(" -> ")
    assert (len(old), len(new)) == (160, 160)
    assert old == '"' + "x" * 158 + "…"
    (line,) = differences({"a": "x" * 1000 + "1" + "z" * 500}, {"a": "x" * 1000 + "2" + "z" * 500})
    old, new = line.removeprefix("a ").split(" -> ")
    assert (len(old), len(new)) == (160, 160)
    assert "x1z" in old
    assert "x2z" in new
    (line,) = differences({"a": "x" * 1000}, {"a": "x" * 1001})
    old, new = line.removeprefix("a ").split(" -> ")
    assert old != new
    (line,) = differences({"a": list(range(500))}, {"a": 1})
    assert len(line) < 180


@settings(deadline=None)  # a busy machine is no failure
@given(TREES, TREES)
def test_no_line_if_and_only_if_the_fingerprints_agree(saved, current):
    lines = differences(saved, current)
    assert (lines == []) == (fingerprint(saved) == fingerprint(current))
    assert differences(saved, copy.deepcopy(saved)) == []
    assert all(line.isprintable() for line in lines)
    assert len(set(lines)) == len(lines)
    # The way back says the same with sides changed: nothing is seen from one side only.
    assert len(differences(current, saved)) == len(lines)


@settings(deadline=None)
@given(st.dictionaries(st.text("ab.", max_size=3), TREES, min_size=1, max_size=4), st.data())
def test_one_changed_leaf_is_one_line_that_shows_both_sides(saved, data):
    key = data.draw(st.sampled_from(sorted(saved)))
    leaf = data.draw(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
    saved[key], current = leaf, {**saved, key: [leaf]}
    path = key if key and "." not in key else f'["{key}"]'
    assert differences(saved, current) == [f"{path} {json.dumps(leaf)} -> [{json.dumps(leaf)}]"]


@settings(deadline=None)
@given(st.text("ab", max_size=400), st.text("ab", max_size=400), st.text("ab", max_size=400))
def test_shown_sides_always_differ_and_are_at_most_160_long(common, old, new):
    for line in differences([common + old], [common + new]):
        shown = line.removeprefix("[0] ").split(" -> ")
        assert shown[0] != shown[1]
        assert max(map(len, shown)) <= 160


@settings(deadline=None)
@given(st.dictionaries(TEXT, TREES, max_size=5), st.randoms())
def test_the_order_of_keys_does_not_matter(value, random):
    items = list(value.items())
    random.shuffle(items)
    assert fingerprint(dict(items)) == fingerprint(value)
    assert differences(value, dict(items)) == []


@settings(deadline=None)
@given(TREES)
def test_what_went_through_a_json_file_is_the_same(value):
    assert differences(json.loads(canonical_json(value)), value) == []


def test_the_fingerprint_is_the_same_in_every_process():
    code = (
        "import runpy, sys; module = runpy.run_path(sys.argv[1]);"
        "print(module['fingerprint']({k: {k: [1.5, k]} for k in {'alpha', 'beta', 'gamma', 'é', 'token'}}))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code, identity.__file__],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    here = fingerprint({k: {k: [1.5, k]} for k in ("é", "token", "gamma", "beta", "alpha")})
    assert seen == {here + "\n"}


SECRETS = """
    token TOKEN hf_token HF_TOKEN hf-token hfToken auth_token accessToken access_token refresh_token github_token
    wandb_token id_token session_token bearer_token user_token my.company.token csrf_token token_1 access_tokens
    api_key apiKey APIKey API_KEY apikey api-key OPENAI_API_KEY wandb_api_key openai_api_keys wandbApiKey api_key_1
    password PASSWORD db_password dbPassword passwords passwd passphrase userpassword db_pwd
    secret SECRET client_secret clientSecret secrets aws_secret_access_key secret_key secret_name
    credential credentials GOOGLE_APPLICATION_CREDENTIALS authorization Authorization proxy-authorization auth
    private_key privateKey ssh_private_key access_key aws_access_key_id signing_key encryption_key ssh_key
    cookie Set-Cookie jwt sentry_dsn slack_webhook_url connection_string basic_auth bearer auth_header
""".split()  # noqa: SIM905 - a table to read

NO_SECRETS = """
    max_tokens max_new_tokens min_tokens num_tokens n_tokens total_tokens token_count tokens token_ids token_mask
    tokens_per_second max_num_batched_tokens tokenizer tokenizer_path tokenizer_name_or_path tokenize tokenization
    pad_token eos_token bos_token unk_token mask_token cls_token sep_token image_token video_token audio_token
    pad_token_id eos_token_id bos_token_id decoder_start_token_id image_token_id stop_token_ids forced_eos_token
    additional_special_tokens special_tokens add_bos_token add_eos_token skip_special_tokens image_pad_token
    vision_start_token think_end_token end_of_text_token start_of_turn_token per_token loss_per_token max_token
    ignore_index_token_level_loss token_level_loss normalize_by_token padToken eosToken next_token
    key keys prompt_key answer_key image_key key_dim num_key_value_heads query_key_norm sort_key primary_key keyword
    author authors auth_type pass_rate pass_at_k bypass compass passes secretary monkey api_url api_base api_version
    access_mode private public_dataset model seed lr hidden_size head_dim session_id user certificate
""".split()  # noqa: SIM905 - a table to read


@pytest.mark.parametrize("key", SECRETS)
def test_keys_that_look_like_secrets(key):
    assert redact({key: "x"}) == {key: REDACTED}


@pytest.mark.parametrize("key", NO_SECRETS)
def test_keys_that_do_not(key):
    assert redact({key: "x"}) == {key: "x"}


def test_redact_copies_and_leaves_the_input_alone():
    value = {"a": [{"token": "t", "n": 1}, ({"password": {"deep": 1}},)], "m": types.MappingProxyType({"api_key": 1})}
    before = copy.deepcopy({**value, "m": dict(value["m"])})
    redacted = redact(value)
    assert redacted == {
        "a": [{"token": REDACTED, "n": 1}, ({"password": REDACTED},)],
        "m": {"api_key": REDACTED},
    }
    assert type(redacted["m"]) is dict
    redacted["a"][0]["n"] = 2
    redacted["a"].append(1)
    assert {**value, "m": dict(value["m"])} == before


@pytest.mark.parametrize("other", [None, 5, "other", {"x": 1}, [1], REDACTED])
def test_a_changed_secret_does_not_change_the_fingerprint(other):
    saved, current = ({"judge": [{"hf_token": secret, "n": 1}]} for secret in ("first", other))
    assert fingerprint(redact(saved)) == fingerprint(redact(current))
    assert differences(redact(saved), redact(current)) == []
    assert "first" not in canonical_json(redact(saved)).decode()


@settings(deadline=None)
@given(TREES)
def test_redacting_twice_is_redacting_once(value):
    assert redact(redact(value)) == redact(value)


def test_redact_keeps_what_it_does_not_know():
    path, keys = Path("/x"), {1: "one", None: [b"token"]}
    assert redact({"path": path, "keys": keys, "text": "token"}) == {"path": path, "keys": keys, "text": "token"}
