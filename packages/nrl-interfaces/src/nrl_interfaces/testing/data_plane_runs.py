"""Random runs: the same calls on an adapter and on the model of the contract, compared after each. Needs hypothesis."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane import ClaimExplanation, DataPlaneClient, StaleMetaError
from nrl_interfaces.layout import to_jagged
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text, fields_of
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, ContractBrokenError, Mode
from nrl_interfaces.testing.model_data_plane import ModelDataPlane
from nrl_interfaces.testing.model_partition import ModelPartition

__all__ = ["random_runs"]

FIELDS = ("x", "wide", "jagged", "c", "input_lengths")
TASKS = ("train", "eval")
ERRORS = (StaleMetaError, TimeoutError, KeyError, ValueError, RuntimeError, TypeError)  # the narrow ones first

letters, tasks = st.sampled_from("pqr"), st.sampled_from(TASKS)
some_fields = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True)
sizes = st.integers(1, 4)
groups = st.sampled_from([None, None, 2])
_runs = itertools.count(1)


def random_runs(contract: ClauseTests, mode: Mode, runs: int) -> None:
    """Compare an adapter with the model in random runs, the same ones each time.

    Raises:
        ContractBrokenError: If they differ; lists the calls of the run.
    """
    run_state_machine_as_test(
        cast("type[_Runs]", lambda: _Runs(contract, mode)),
        settings=settings(
            max_examples=runs,
            stateful_step_count=30,
            phases=[Phase.generate],  # to shorten a run that fails takes minutes; the error lists its calls instead
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
        ),
    )


# Preconditions are functions with names: hypothesis 6.100 parses the source of each lambda, at each step.


def _may_register(runs: "_Runs") -> bool:
    return len(runs.model.partitions) < 2 or runs.steps_since_load % 5 == 0


def _has_partitions(runs: "_Runs") -> bool:
    return bool(runs.model.partitions)


def _has_room(runs: "_Runs") -> bool:
    return bool(runs.with_room())


def _has_rows(runs: "_Runs") -> bool:
    return bool(runs.filled())


def _has_claims(runs: "_Runs") -> bool:
    return bool(runs.claimed())


def _has_metas(runs: "_Runs") -> bool:
    return bool(runs.metas)


def _may_clear(runs: "_Runs") -> bool:
    return bool(runs.filled()) and runs.steps_since_load % 3 == 0


def _may_clear_all(runs: "_Runs") -> bool:
    return runs.steps_since_load % 7 == 0


def _may_load(runs: "_Runs") -> bool:
    return runs.steps_since_load > 15


class _Runs(RuleBasedStateMachine):
    """One run. Calls may be bad in one way at a time, since nothing says which of two errors comes first."""

    def __init__(self, contract: ClauseTests, mode: Mode) -> None:
        super().__init__()
        self._contract = contract
        self._mode: Mode = mode
        self._prefix = f"{contract.id_prefix}r{next(_runs)}"
        self._client, self.model = self._make(), ModelDataPlane(partition_mode=mode)
        self._numbers = itertools.count(1)
        self.metas: list[dict[DataPlaneClient, KVBatchMeta]] = []
        self._calls: list[str] = []
        self.steps_since_load = 0

    def _make(self) -> DataPlaneClient:
        return self._contract.make_client(partition_mode=self._mode, max_partitions=2, owner=None, safe_globals=())

    def teardown(self) -> None:
        self._contract.drop_client(self._client)
        self.model.close()

    def _agree(self, what: str, call: Callable[[DataPlaneClient], object]) -> dict[DataPlaneClient, Any]:
        """Call both; fail unless they do the same. Give the results, nothing where both raised."""
        self.steps_since_load += 1
        self._calls.append(what)
        seen, right = _Outcome(call, self._client), _Outcome(call, self.model)
        if seen.text != right.text:
            calls = "\n    ".join(self._calls)
            raise ContractBrokenError(
                f"in a random run: {what}\n  seen: {seen.text}\n  right: {right.text}\n  all calls:\n    {calls}"
            )
        return {} if right.error else {self._client: seen.result, self.model: right.result}

    # ---- What calls are made of ----

    def filled(self) -> list[ModelPartition]:
        return [partition for partition in self.model.partitions if partition.rows]

    def with_room(self) -> list[ModelPartition]:
        return [
            partition
            for partition in self.model.partitions
            if (len(partition.rows) < partition.num_samples if partition.is_stream else not partition.was_put)
        ]

    def claimed(self) -> list[tuple[str, str, list[str]]]:
        """The partitions and tasks that have claims, with the ids."""
        return [
            (partition.partition_id, task, sorted(ids))
            for partition in self.model.partitions
            for task, ids in partition.claimed.items()
            if ids
        ]

    def _some_rows(self, data: st.DataObject) -> tuple[ModelPartition, list[str]]:
        """Choose a partition and ids that are there, in any order."""
        partition = data.draw(st.sampled_from(self.filled()))
        there = sorted(partition.rows)
        return partition, data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=len(there), unique=True))

    def _columns(self, fields: Sequence[str], rows: int) -> dict[str, Any]:
        """Make columns whose values stand in no other."""
        number = next(self._numbers) * 100
        every = {
            "x": torch.arange(number, number + rows),
            "wide": torch.arange(number, number + 2.0 * rows).reshape(rows, 2),
            "jagged": to_jagged(
                torch.arange(number, number + 3 * rows).reshape(rows, 3), [at % 4 for at in range(rows)]
            ),
            "c": [f"c{number + at}" for at in range(rows)],
            "input_lengths": torch.arange(rows) + number,
        }
        return {name: every[name] for name in fields}

    def _tags(self, rows: int) -> list[dict[str, Any]]:
        number = next(self._numbers)
        return [{"n": [number, at]} for at in range(rows)]

    def _new_ids(self, rows: int) -> list[str]:
        numbers = [next(self._numbers) for _ in range(rows)]
        return [f"s{number * 7 % 10}-{number}" for number in numbers]  # not in sorted order

    # ---- The calls ----

    @initialize(rows=st.sampled_from([2, 4, 6]), group=groups, fields=some_fields)
    def begin(self, rows: int, group: int | None, fields: list[str]) -> None:
        for letter in "pq":
            self.register(letter, rows, group)
            self._put(
                self._prefix + letter, self._new_ids(rows - rows % (group or 1)), fields, tagged=True, replace=False
            )

    @precondition(_may_register)
    @rule(letter=letters, rows=st.integers(0, 6), group=groups)
    def register(self, letter: str, rows: int, group: int | None) -> None:
        self._agree(
            f"register_partition of {rows} rows in groups of {group}",
            lambda client: client.register_partition(self._prefix + letter, list(FIELDS), rows, list(TASKS), group),
        )

    @precondition(_has_room)
    @rule(data=st.data(), fields=some_fields, tagged=st.booleans())
    def put_new(self, data: st.DataObject, fields: list[str], *, tagged: bool) -> None:
        partition = data.draw(st.sampled_from(self.with_room()))
        room = partition.num_samples - len(partition.rows)
        rows = data.draw(st.sampled_from([room, room, max(1, room // 2), room + 1]))
        self._put(partition.partition_id, self._new_ids(rows), fields, tagged=tagged, replace=False)

    @precondition(_has_rows)
    @rule(data=st.data(), fields=some_fields, kind=st.sampled_from(["add", "replace", "tags", "both"]))
    def put_more(self, data: st.DataObject, fields: list[str], kind: str) -> None:
        partition, ids = self._some_rows(data)
        columns = None if kind == "tags" else fields
        self._put(partition.partition_id, ids, columns, tagged=kind in ("tags", "both"), replace=kind == "replace")

    def _put(self, partition_id: str, ids: list[str], fields: list[str] | None, *, tagged: bool, replace: bool) -> None:
        columns = None if fields is None else self._columns(fields, len(ids))
        tags = self._tags(len(ids)) if tagged else None
        metas = self._agree(
            f"put_samples of {ids} with {fields}, {tags=}, {replace=}",
            lambda client: client.put_samples(ids, partition_id, columns, tags, replace=replace),
        )
        if metas:
            self.metas.append(metas)

    @precondition(_has_rows)
    @rule(data=st.data(), fields=some_fields, fault=st.sampled_from(["short", "twice", "tags", "field"]))
    def put_wrong(self, data: st.DataObject, fields: list[str], fault: str) -> None:
        partition, ids = self._some_rows(data)
        rows = len(ids)
        if fault == "twice":
            ids, rows = [*ids, ids[0]], rows + 1
        columns, tags = self._columns(fields, rows - (fault == "short")), self._tags(rows + (fault == "tags"))
        if fault == "field":
            columns["nowhere"] = torch.arange(rows)
        self._agree(
            f"put_samples of {ids} with a fault: {fault}",
            lambda client: client.put_samples(ids, partition.partition_id, columns, tags, replace=True),
        )

    @precondition(_has_partitions)
    @rule(
        data=st.data(),
        task=tasks,
        fields=some_fields,
        size=sizes,
        blocking=st.booleans(),
        rank=st.sampled_from([None, 3]),
    )
    def claim(
        self, data: st.DataObject, task: str, fields: list[str], size: int, *, blocking: bool, rank: int | None
    ) -> None:
        partition_id = data.draw(st.sampled_from(self.model.partitions)).partition_id
        metas = self._agree(
            f"claim_meta of {size} rows with {fields} for {task}, {blocking=}",
            lambda client: client.claim_meta(partition_id, task, fields, size, rank, blocking, 0),
        )
        if metas:
            self.metas.append(metas)

    @precondition(_has_claims)
    @rule(data=st.data(), also=st.sampled_from(["", "", "", "nobody"]))
    def release(self, data: st.DataObject, also: str) -> None:
        partition_id, task, claimed = data.draw(st.sampled_from(self.claimed()))
        ids = data.draw(st.one_of(st.just(claimed), st.lists(st.sampled_from(claimed), min_size=1, unique=True)))
        asked = [*ids, also] if also else ids
        self._agree(
            f"release_claims of {asked} for {task}", lambda client: client.release_claims(asked, partition_id, task)
        )
        self._explain(partition_id, task, ["x"], 2)

    @precondition(_has_rows)
    @rule(data=st.data(), fields=some_fields, also=st.sampled_from(["", "", "", "nobody"]))
    def get_samples(self, data: st.DataObject, fields: list[str], also: str) -> None:
        partition, ids = self._some_rows(data)
        there = [name for name in FIELDS if all(name in partition.rows[sample_id] for sample_id in ids)]
        names = data.draw(st.sampled_from([fields, there or fields]))
        asked = [*ids, also] if also else ids
        self._agree(
            f"get_samples of {asked} with {names}",
            lambda client: client.get_samples(asked, partition.partition_id, names),
        )

    @precondition(_has_metas)
    @rule(data=st.data(), fields=st.one_of(st.none(), some_fields))
    def get_data(self, data: st.DataObject, fields: list[str] | None) -> None:
        metas = self.metas[data.draw(st.integers(0, len(self.metas) - 1))]
        if metas[self.model].size:
            self._agree(
                f"get_data of an earlier meta with {fields}", lambda client: client.get_data(metas[client], fields)
            )

    @precondition(_may_clear)
    @rule(data=st.data(), strange=st.sampled_from([None, None, "nobody"]))
    def clear(self, data: st.DataObject, strange: str | None) -> None:
        partition, ids = self._some_rows(data)
        asked = [*ids, strange] if strange else ids
        self._agree(f"clear_samples of {asked}", lambda client: client.clear_samples(asked, partition.partition_id))

    @precondition(_may_clear_all)
    @rule(letter=letters)
    def clear_all(self, letter: str) -> None:
        self._agree("clear_samples of all", lambda client: client.clear_samples(None, self._prefix + letter))

    @rule(letter=letters, task=tasks, names=st.lists(tasks, min_size=1, unique=True), fields=some_fields, size=sizes)
    def look(self, letter: str, task: str, names: list[str], fields: list[str], size: int) -> None:
        partition_id = self._prefix + letter
        self._agree("list_sample_ids", lambda client: client.list_sample_ids(partition_id))
        self._agree("stats", lambda client: (client.stats().partitions, client.stats().rows))
        self._agree(
            f"check_consumption_status of {names}",
            lambda client: client.check_consumption_status(partition_id, names),
        )
        self._explain(partition_id, task, fields, size)

    def _explain(self, partition_id: str, task: str, fields: list[str], size: int) -> None:
        self._agree(
            f"explain of {size} rows with {fields} for {task}",
            lambda client: client.explain(partition_id, task, fields, size),
        )

    @precondition(_may_load)
    @rule()
    def save_and_load(self) -> None:
        old = (self._client, self.model)
        with tempfile.TemporaryDirectory(prefix="nrl-runs-") as name:
            for folder, client in zip(("client", "model"), old, strict=True):
                client.save_checkpoint(Path(name, folder), metadata={"n": 1})
            self.teardown()
            self._client, self.model = self._make(), ModelDataPlane(partition_mode=self._mode)
            folders = {self._client: Path(name, "client"), self.model: Path(name, "model")}
            self._agree("load_checkpoint", lambda client: client.load_checkpoint(folders[client]))
        self.metas = [{self._client: metas[old[0]], self.model: metas[old[1]]} for metas in self.metas]
        for partition, task in itertools.product(self.model.partitions, TASKS):
            self._explain(partition.partition_id, task, ["x"], 2)
        self.steps_since_load = 0


class _Outcome:
    """What came of a call, as text: of errors the class that the contract names."""

    def __init__(self, call: Callable[[DataPlaneClient], object], client: DataPlaneClient) -> None:
        self.result: Any = None
        self.error = False
        try:
            self.result = call(client)
        except ERRORS as error:
            self.error = True
            self.text = next(kind.__name__ for kind in ERRORS if isinstance(error, kind))
        else:
            self.text = _as_text(self.result)


def _as_text(result: Any) -> str:
    if isinstance(result, KVBatchMeta):
        lists = (result.sample_ids, result.fields or None, result.sequence_lengths or None, result.tags)
        return f"a meta: {result.task_name}, {lists}, rank {result.extra_info.get('dp_rank')}"
    if isinstance(result, ClaimExplanation):
        return str({**vars(result), "rows_missing": dict(result.rows_missing)})
    if hasattr(result, "batch_size"):
        return str(columns_as_text(result, fields_of(result)))
    return repr(result)
