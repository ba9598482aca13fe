"""Which shard each replica reads."""

import pytest
from nrl_energon_loader import DataLoaderPlacementPlan, EnergonLoaderConfig, common_batches, plan_placement
from nrl_energon_loader.topology import _v2_topology


def test_the_default_gives_each_replica_a_shard_of_its_own() -> None:
    plan = plan_placement(3)
    assert plan.shards == (0, 1, 2)
    assert plan.logical_world_size == 3
    assert [plan.logical_rank(replica) for replica in range(3)] == [0, 1, 2]


def test_the_placement_hash_is_that_of_the_plan() -> None:
    assert plan_placement(3).fingerprint == DataLoaderPlacementPlan((0, 1, 2)).fingerprint
    plans = [(0,), (0, 1), (1, 0), (0, 0), (0, 1, 0)]
    assert len({DataLoaderPlacementPlan(shards).fingerprint for shards in plans}) == len(plans)


@pytest.mark.parametrize("shards", [(), (1,), (0, 2), (-1, 0)])
def test_a_plan_reads_every_shard(shards) -> None:
    with pytest.raises(ValueError, match="allowed: all of 0 to the highest"):
        DataLoaderPlacementPlan(shards)


def test_replicas_that_are_not_there() -> None:
    for replica in (-1, 2):
        with pytest.raises(ValueError, match="allowed: 0 to 1"):
            plan_placement(2).logical_rank(replica)
    with pytest.raises(ValueError, match="replicas is 0"):
        plan_placement(0)


def test_a_mapper_from_a_file(tmp_path) -> None:
    file = tmp_path / "mapper.py"
    file.write_text(
        "from nrl_energon_loader import DataLoaderPlacementPlan\n"
        "def pairs(replicas):\n    return DataLoaderPlacementPlan(tuple(n // 2 for n in range(replicas)))\n"
        "def wrong(replicas):\n    return DataLoaderPlacementPlan((0,))\n"
    )
    assert plan_placement(4, f"{file}:pairs").shards == (0, 0, 1, 1)
    with pytest.raises(ValueError, match="placed 1 replicas; allowed: 4"):
        plan_placement(4, f"{file}:wrong")
    config = EnergonLoaderConfig(topology_mapper=f"{file}:pairs")
    placed = {"placement_fingerprint": "x", "logical_rank": 0, "logical_world_size": 2}
    described = _v2_topology(loader_config=config, **placed)
    assert described["mapper"].keys() == {"object", "sha256"}
    assert _v2_topology(loader_config=EnergonLoaderConfig(), **placed) == {
        "mapper": {"key": "default", "version": 1},
        **placed,
    }


def test_the_common_number_of_batches() -> None:
    assert common_batches(iter([3, 2, 3])) == 2
    with pytest.raises(ValueError, match="no rank"):
        common_batches([])
