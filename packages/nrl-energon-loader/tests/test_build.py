"""Whatever is wrong with the settings is a ValueError when the loader is built, before any worker starts."""

import re
from pathlib import Path
from typing import Any

import hf
import pytest
from data import numbers, plain_dataset, plain_loader
from nrl_energon_loader import EnergonLoaderConfig, EnergonSourceConfig
from nrl_energon_loader.build import _loader_config, _source_config


@pytest.fixture(scope="module")
def path(datasets: Path) -> Path:
    return plain_dataset(datasets / "to build", numbers(10), splits={"train": 0.8, "val": 0.2})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown loader key": (
        {"energon": {"num_worker": 2}},
        "data_config.energon.num_worker is not known; the nearest key is 'num_workers'",
    ),
    "unknown data key": (
        {"data_config": {"shufle": True}},
        "data_config.shufle is not known; the nearest key is 'shuffle'",
    ),
    "unknown source key": (
        {"source": {"virtual_epoch_len": 3}},
        "source.virtual_epoch_len is not known; the nearest key is 'virtual_epoch_length'",
    ),
    "unknown cooker key": (
        {"energon": {"cookers": [{"name": "generic_conversation"}]}},
        "data_config.energon.cookers[0].name is not known; the nearest key is",
    ),
    "a number as text": ({"energon": {"num_workers": "2"}}, "data_config.energon.num_workers is '2'"),
    "negative workers": ({"energon": {"num_workers": -1}}, "data_config.energon.num_workers is -1"),
    "no samples to shuffle": ({"energon": {"shuffle_buffer_size": 0}}, "shuffle_buffer_size is 0"),
    "no cooker": ({"energon": {"cookers": []}}, "cookers has 0 entries"),
    "unknown cooker": ({"energon": {"cookers": ["generic_conversatio"]}}, "generic_conversation"),
    "unknown encoder": ({"energon": {"task_encoder": "generic_stf"}}, "did you mean 'generic_sft'"),
    "unknown mapper": ({"energon": {"topology_mapper": "defaul"}}, "did you mean 'default'"),
    "split that is not there": ({"split": "test"}, "split 'test' of "),
    "batch_size 0": ({"batch_size": 0}, "batch_size is 0; allowed: whole numbers from 1"),
    "batch_size as a float": ({"batch_size": 2.0}, "batch_size is 2.0"),
    "world size 0": ({"logical_world_size": 0}, "logical_world_size is 0"),
    "rank beyond the world": ({"logical_rank": 2, "logical_world_size": 2}, "logical_rank is 2 of 2; allowed: 0 to 1"),
    "negative rank": ({"logical_rank": -1}, "logical_rank is -1 of 1"),
    "more ranks than samples": (
        {"logical_world_size": 16, "logical_rank": 15},
        "rank 15 of 16 with 1 worker(s) gets no sample of ",
    ),
    "unknown role": ({"split_role": "test"}, "split_role is 'test'; allowed: 'train', 'validation'"),
    "limit in training": ({"source": {"limit": 3}}, "source.limit is 3 in training"),
    "limit and virtual epoch": (
        {"split_role": "validation", "source": {"limit": 3, "virtual_epoch_length": 3}},
        "allowed: one of them",
    ),
    "packing on two ranks without a virtual epoch": (
        {"packing_algorithm": "concatenative", "logical_world_size": 2},
        "source.virtual_epoch_length is None with packing and logical_world_size 2",
    ),
    "packing validation on two ranks": (
        {"packing_algorithm": "concatenative", "logical_world_size": 2, "split_role": "validation"},
        "source.virtual_epoch_length is None with packing",
    ),
    "unknown packing": ({"packing_algorithm": "first_fit"}, "first_fit_decreasing"),
    "capacity not divisible": (
        {"packing_algorithm": "concatenative", "sequence_length_pad_multiple": 5},
        "allowed: a multiple of sequence_length_pad_multiple, 5",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_settings_are_refused_when_the_loader_is_built(path: Path, name: str) -> None:
    settings, message = BAD[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        plain_loader(path, **settings)


def test_a_dataset_that_is_not_prepared(tmp_path: Path) -> None:
    for name in ("folder", "missing"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=r"is not a prepared dataset; allowed: a folder with a \.nv-meta folder"):
            plain_loader(tmp_path / name)


def test_a_split_that_is_not_there_names_those_that_are(path: Path) -> None:
    with pytest.raises(ValueError, match="splits with shards in it: train, val"):
        plain_loader(path, split="test")


def test_the_split_of_a_role_is_taken_where_none_is_named(path: Path) -> None:
    with plain_loader(path, split=None) as train, plain_loader(path, split=None, split_role="validation") as validation:
        assert [len(train), len(validation)] == [4, 1]


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    broken = plain_dataset(tmp_path / "broken", numbers(10))
    (broken / "train-000001.tar").unlink()
    with pytest.raises(ValueError, match=r"a shard of .* is missing"):
        plain_loader(broken)


def test_a_processor_without_a_chat_template(path: Path) -> None:
    energon = {"task_encoder": "generic_sft"}
    with pytest.raises(ValueError, match=r"chat.template"):
        plain_loader(path, energon=energon, processor=hf.make_tokenizer(chat_template=None))
    with pytest.raises(ValueError, match="processor"):
        plain_loader(path, energon=energon)


def test_configs_are_read_from_mappings_and_given_back_as_they_are(path: Path) -> None:
    source = _source_config({"path": path}, name="data.train")
    assert source == EnergonSourceConfig(path=str(path))
    assert _source_config(source, name="data.train") is source
    assert _loader_config({"prefetch_factor": 3}) == EnergonLoaderConfig(prefetch_factor=3)
    with pytest.raises(ValueError, match=r"^data.train is 3; allowed: a mapping with the keys path, split"):
        _source_config(3, name="data.train")
    with pytest.raises(ValueError, match=r"^data.train.path is {}: Field required"):
        _source_config({}, name="data.train")
    with pytest.raises(ValueError, match=r"(?s)data.train.limit .*\n.*data.train.nothing is not known"):
        _source_config({"path": "a", "limit": 0, "nothing": 1}, name="data.train")
