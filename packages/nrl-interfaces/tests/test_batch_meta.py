"""KVBatchMeta: pure functions over ids, lengths and tags that stay in step."""

import pickle
from typing import Any

import pytest
import torch
from nrl_interfaces import KVBatchMeta


def meta(ids: str = "abcd", **changes: Any) -> KVBatchMeta:
    given: dict[str, Any] = {
        "partition_id": "p",
        "task_name": "train",
        "sample_ids": list(ids),
        "fields": ["x", "y"],
        "sequence_lengths": list(range(len(ids))),
        "extra_info": {"local_partition_generation": 4, "dp_rank": 1, "more": {"k": [1]}},
        "tags": [{"of": sample_id, "turns": [sample_id]} for sample_id in ids],
    }
    return KVBatchMeta(**{**given, **changes})


def content(one: KVBatchMeta) -> tuple[Any, ...]:
    return (one.sample_ids, one.sequence_lengths, None if one.tags is None else [tag["of"] for tag in one.tags])


PURE = {
    "subset": lambda one: one.subset([2, 0]),
    "slice": lambda one: one.slice(1, 3),
    "drop": lambda one: one.drop(["b"]),
    "concat": lambda one: one.concat(meta("ef")),
    "concat of one": lambda one: one.concat(),
    "with_fields": lambda one: one.with_fields(["z"]),
    "stamp_tags": lambda one: one.stamp_tags({"n": [1]}),
}


def test_defaults_are_none_and_empty() -> None:
    one = KVBatchMeta("p", None, ["a"])
    assert (one.fields, one.sequence_lengths, one.extra_info, one.tags) == (None, None, {}, None)
    assert one.extra_info is not KVBatchMeta("p", None, ["a"]).extra_info


@pytest.mark.parametrize("name", ["sequence_lengths", "tags"])
def test_lists_of_another_length_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has 3 items; allowed: 4"):
        meta(**{name: [{}] * 3})


def test_size_and_generation() -> None:
    assert (meta().size, meta("").size) == (4, 0)
    assert meta().generation == 4
    assert meta(extra_info={}).generation is None


@pytest.mark.parametrize("name", PURE)
def test_a_result_shares_nothing_and_the_meta_stays(name: str) -> None:
    one = meta()
    made = PURE[name](one)
    assert one == meta()
    assert made.fields is not None
    assert made.tags is not None
    assert made.sequence_lengths is not None
    for tag in made.tags:
        tag["turns"].append("spoiled")
    for spoiled in (made.sample_ids, made.fields, made.sequence_lengths, made.tags, made.extra_info["more"]["k"]):
        spoiled.clear()
    made.extra_info.clear()
    assert one == meta()


@pytest.mark.parametrize(
    "indices", [[2, 0], torch.tensor([2, 0]), (-2, 0), slice(2, None, -2)], ids=["list", "tensor", "negative", "slice"]
)
def test_subset_gives_rows_in_the_order_asked(indices: Any) -> None:
    assert content(meta().subset(indices)) == (["c", "a"], [2, 0], ["c", "a"])


def test_subset_without_lengths_and_tags() -> None:
    assert content(meta(sequence_lengths=None, tags=None).subset([1])) == (["b"], None, None)


def test_subset_refuses_a_row_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="index 4 is out of range for 4 rows"):
        meta().subset([4])


def test_slice_has_the_bounds_of_a_list() -> None:
    assert content(meta().slice(2, 9)) == (["c", "d"], [2, 3], ["c", "d"])
    assert content(meta().slice(3, 1)) == ([], [], [])


def test_drop_keeps_the_others_in_order() -> None:
    assert content(meta().drop(["c", "a"])) == (["b", "d"], [1, 3], ["b", "d"])
    with pytest.raises(KeyError, match="'z' is not in this meta of 4 rows"):
        meta().drop(["a", "z"])


def test_concat_puts_rows_behind_each_other() -> None:
    assert content(meta("ab").concat(meta("d"), meta("c"))) == (
        ["a", "b", "d", "c"],
        [0, 1, 0, 0],
        ["a", "b", "d", "c"],
    )


def test_concat_leaves_out_what_the_metas_do_not_agree_in() -> None:
    other = meta("c", task_name="eval", fields=["y", "z"], extra_info={"local_partition_generation": 4, "dp_rank": 2})
    joined = meta("ab").concat(other)
    assert (joined.task_name, joined.fields, joined.extra_info) == (None, ["y"], {"local_partition_generation": 4})
    assert meta("ab").concat(meta("c", fields=None)).fields is None


def test_concat_with_a_meta_without_tags_or_lengths() -> None:
    joined = meta("a").concat(meta("b", tags=None, sequence_lengths=None))
    assert joined.tags == [{"of": "a", "turns": ["a"]}, {}]
    assert joined.sequence_lengths is None
    assert meta("a", tags=None).concat(meta("b", tags=None)).tags is None


def test_concat_refuses_another_partition_or_generation() -> None:
    with pytest.raises(ValueError, match="partition 'q', generation 4, can't join one of partition 'p', generation 4"):
        meta().concat(meta(partition_id="q"))
    with pytest.raises(ValueError, match="partition 'p', generation 5, can't join one of partition 'p', generation 4"):
        meta().concat(meta(extra_info={"local_partition_generation": 5}))


def test_with_fields_changes_the_fields_alone() -> None:
    assert meta().with_fields(["z"]) == meta(fields=["z"])


def test_stamp_tags_adds_to_every_row_or_to_each_its_own() -> None:
    one = meta("ab", tags=[{"n": 1, "k": 0}, {"n": 2}])
    assert one.stamp_tags({"k": 5}).tags == [{"n": 1, "k": 5}, {"n": 2, "k": 5}]
    assert one.stamp_tags([{"k": 5}, {"n": 7}]).tags == [{"n": 1, "k": 5}, {"n": 7}]
    assert meta("ab", tags=None).stamp_tags({"k": 5}).tags == [{"k": 5}, {"k": 5}]
    with pytest.raises(ValueError, match="3 tags to stamp; allowed: one for all, or 2"):
        one.stamp_tags([{}, {}, {}])


def test_stamp_tags_copies_what_it_stamps() -> None:
    turns = [1]
    stamped = meta("ab").stamp_tags({"turns": turns})
    turns.append(2)
    assert stamped.tags is not None
    stamped.tags[0]["turns"].append(3)
    assert stamped.tags[1]["turns"] == [1]


def test_a_meta_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(meta())) == meta()
