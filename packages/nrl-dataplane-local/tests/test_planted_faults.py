"""Six adapters with one fault each: the contract's tests name the clause that each breaks."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from nrl_dataplane_local import LocalDataPlaneClient, LocalDataPlaneConfig
from nrl_interfaces.data_plane import DataPlaneClient, KVBatchMeta
from nrl_interfaces.testing.data_plane import check_data_plane


class Aliasing(LocalDataPlaneClient):
    """A full read hands out what an earlier one did, to save copies."""

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        read = super().get_samples(sample_ids, partition_id, select_fields)
        kept = self.__dict__.setdefault("kept", {})
        is_full = sorted(sample_ids) == self.list_sample_ids(partition_id)
        return kept.setdefault((partition_id, *sample_ids, *select_fields), read) if is_full else read


class LostWakeUp(LocalDataPlaneClient):
    """A claim looks, and then sleeps to its end: a put that comes in between is not noticed."""

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        arguments = (partition_id, task_name, required_fields, batch_size, dp_rank)
        if blocking and timeout_s > 0 and self.explain(*arguments[:4]).would_wait:
            time.sleep(timeout_s)
            timeout_s = 0
        return super().claim_meta(*arguments, blocking, timeout_s)


class DoubleClaim(LocalDataPlaneClient):
    """A claim looks and then marks, and between the two another thread may look."""

    def claim_meta(self, partition_id: str, task_name: str, *args: Any, **more: Any) -> KVBatchMeta:
        meta = super().claim_meta(partition_id, task_name, *args, **more)
        seen = self.__dict__.setdefault("threads", set())
        if meta.sample_ids and threading.get_ident() not in seen and threading.current_thread().daemon:
            seen.add(threading.get_ident())  # once a thread, so that the claims come to an end
            self.release_claims(meta.sample_ids, partition_id, task_name)
        return meta


class HalfAPut(LocalDataPlaneClient):
    """A put stores column after column: the ones before the bad one stay."""

    def put_samples(
        self, sample_ids: Any, partition_id: Any, fields: Any = None, tags: Any = None, *, replace: bool = False
    ) -> KVBatchMeta:
        for name in [] if fields is None else list(fields.keys())[:-1]:
            super().put_samples(sample_ids, partition_id, {name: fields[name]}, replace=replace)
            fields = {other: fields[other] for other in fields.keys() if other != name}  # noqa: SIM118
        return super().put_samples(sample_ids, partition_id, fields, tags, replace=replace)


class StaleRead(LocalDataPlaneClient):
    """A read of a meta goes by its ids alone."""

    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> Any:
        return self.get_samples(meta.sample_ids, meta.partition_id, select_fields or meta.fields or [])


class RowOrder(LocalDataPlaneClient):
    """A read gives rows as they are stored, whatever the order asked."""

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        return super().get_samples(sorted(sample_ids), partition_id, select_fields)


def maker(adapter: type[LocalDataPlaneClient]) -> Callable[..., DataPlaneClient]:
    return lambda **config: adapter(LocalDataPlaneConfig(**config))


FAULTS = {
    (Aliasing, 9): "test_clause_09_a_full_result_may_be_changed",
    (LostWakeUp, 18): "test_clause_18_wakes_when_a_put_arrives",
    (DoubleClaim, 17): "test_clause_17_no_id_is_claimed_twice_by_threads",
    (HalfAPut, 5): "test_clause_05_a_refused_later_put_leaves_all_as_it_was",
    (StaleRead, 14): "test_clause_14_a_meta_of_an_older_generation_is_stale",
    (RowOrder, 11): "test_clause_11_rows_come_in_the_order_asked",
}


@pytest.mark.parametrize(("adapter", "clause", "test"), [(*key, test) for key, test in FAULTS.items()])
def test_a_planted_fault_is_caught_by_its_clause(adapter: Any, clause: int, test: str) -> None:
    report = check_data_plane(maker(adapter), clauses=[clause], limit_s=0.5)
    failed = {result.test: result for result in report.failed}
    assert test in failed, report
    assert failed[test].clause == clause
    text = str(report)
    assert text.startswith(f"{adapter.__name__}: ")
    assert f"  {test}\n    clause {clause}: " in text, text


def test_without_a_fault_the_same_clauses_hold() -> None:
    report = check_data_plane(maker(LocalDataPlaneClient), clauses=[clause for _, clause in FAULTS])
    assert report.ok, report
    assert not report.left_out
