"""Random runs: the same calls on an adapter and on the model of the contract, compared after each. Needs hypothesis."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from nrl_interfaces.batch_meta import KVBatchMeta
from nrl_interfaces.data_plane import ClaimExplanation, DataPlaneClient, StaleMetaError
from nrl_interfaces.layout import to_jagged
from nrl_interfaces.testing.data_plane_clauses.comparing import columns_as_text, fields_of
from nrl_interfaces.testing.data_plane_clauses.ground import ClauseTests, ContractBrokenError, Mode
from nrl_interfaces.testing.model_data_plane import ModelDataPlane

__all__ = ["random_runs"]

FIELDS = ("x", "wide", "jagged", "c", "input_lengths")
TASKS = ("train", "eval")
ERRORS = (StaleMetaError, TimeoutError, KeyError, ValueError, RuntimeError, TypeError)  # the narrow ones first

letters, tasks = st.sampled_from("pqr"), st.sampled_from(TASKS)
some_fields = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True)
_runs = itertools.count(1)


def random_runs(contract: ClauseTests, mode: Mode, runs: int) -> None:
    """Compare an adapter with the model in random runs, the same ones each time.

    Raises:
        ContractBrokenError: If they differ; hypothesis adds the shortest run that it found.
    """
    run_state_machine_as_test(
        cast("type[_Runs]", lambda: _Runs(contract, mode)),
        settings=settings(
            max_examples=runs,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
        ),
    )


class _Runs(RuleBasedStateMachine):
    """One run. Calls may be bad in one way at a time, since nothing says which of two errors comes first."""

    def __init__(self, contract: ClauseTests, mode: Mode) -> None:
        super().__init__()
        self._contract = contract
        self._mode: Mode = mode
        self._prefix = f"{contract.id_prefix}r{next(_runs)}"
        self._client, self._model = self._make(), ModelDataPlane(partition_mode=mode)
        self._numbers = itertools.count(1)
        self._metas: list[dict[DataPlaneClient, KVBatchMeta]] = []

    def _make(self) -> DataPlaneClient:
        return self._contract.make_client(partition_mode=self._mode, max_partitions=2, owner=None, safe_globals=())

    def teardown(self) -> None:
        self._contract.drop_client(self._client)
        self._model.close()

    def _agree(self, what: str, call: Callable[[DataPlaneClient], object]) -> dict[DataPlaneClient, Any]:
        """Call both; fail unless they do the same. Give the results, nothing where both raised."""
        seen, right = _Outcome(call, self._client), _Outcome(call, self._model)
        if seen.text != right.text:
            raise ContractBrokenError(f"in a random run: {what}\n  seen: {seen.text}\n  right: {right.text}")
        return {} if right.error else {self._client: seen.result, self._model: right.result}

    def _id(self, letter: str) -> str:
        return f"{self._prefix}{letter}"

    def _some_ids(self, data: st.DataObject, letter: str, *, least: int = 1) -> list[str]:
        """Choose ids that are there, in any order; perhaps none where none is."""
        there = self._model.list_sample_ids(self._id(letter))
        size = len(there)
        return data.draw(st.lists(st.sampled_from(there), min_size=least, max_size=size, unique=True)) if size else []

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

    # ---- The calls ----

    @rule(letter=letters, rows=st.integers(0, 6), group=st.sampled_from([None, None, 2]))
    def register(self, letter: str, rows: int, group: int | None) -> None:
        self._agree(
            f"register_partition of {rows} rows in groups of {group}",
            lambda client: client.register_partition(self._id(letter), list(FIELDS), rows, list(TASKS), group),
        )

    @rule(letter=letters, rows=st.integers(1, 6), fields=some_fields, tagged=st.booleans())
    def put_new(self, letter: str, rows: int, fields: list[str], *, tagged: bool) -> None:
        ids = [f"s{9 - next(self._numbers) % 7}-{next(self._numbers)}" for _ in range(rows)]  # not in sorted order
        self._put(letter, ids, fields, tagged=tagged, replace=False)

    @rule(data=st.data(), letter=letters, fields=some_fields, tagged=st.booleans(), replace=st.booleans())
    def put_more(self, data: st.DataObject, letter: str, fields: list[str], *, tagged: bool, replace: bool) -> None:
        if ids := self._some_ids(data, letter):
            self._put(letter, ids, fields, tagged=tagged, replace=replace)

    def _put(self, letter: str, ids: list[str], fields: list[str], *, tagged: bool, replace: bool) -> None:
        columns, tags = self._columns(fields, len(ids)), self._tags(len(ids)) if tagged else None
        metas = self._agree(
            f"put_samples of {ids} with {fields}, {tags=}, {replace=}",
            lambda client: client.put_samples(ids, self._id(letter), columns, tags, replace=replace),
        )
        if metas:
            self._metas.append(metas)

    @rule(
        data=st.data(), letter=letters, fields=some_fields, fault=st.sampled_from(["short", "twice", "tags", "field"])
    )
    def put_wrong(self, data: st.DataObject, letter: str, fields: list[str], fault: str) -> None:
        ids = self._some_ids(data, letter)
        if not ids:
            return
        columns, tags = self._columns(fields, len(ids) - (fault == "short")), self._tags(len(ids) + (fault == "tags"))
        if fault == "field":
            columns["nowhere"] = torch.arange(len(ids))
        if fault == "twice":
            ids, columns, tags = [*ids, ids[0]], self._columns(fields, len(ids) + 1), self._tags(len(ids) + 1)
        self._agree(
            f"put_samples of {ids} with a fault: {fault}",
            lambda client: client.put_samples(ids, self._id(letter), columns, tags, replace=True),
        )

    @rule(data=st.data(), letter=letters)
    def put_tags(self, data: st.DataObject, letter: str) -> None:
        if ids := self._some_ids(data, letter):
            tags = self._tags(len(ids))
            self._agree(f"tags of {ids}", lambda client: client.put_samples(ids, self._id(letter), tags=tags))

    @rule(
        letter=letters,
        task=tasks,
        fields=some_fields,
        size=st.integers(1, 4),
        blocking=st.booleans(),
        ranked=st.booleans(),
    )
    def claim(self, letter: str, task: str, fields: list[str], size: int, *, blocking: bool, ranked: bool) -> None:
        rank = 3 if ranked else None
        metas = self._agree(
            f"claim_meta of {size} rows with {fields} for {task}, {blocking=}",
            lambda client: client.claim_meta(self._id(letter), task, fields, size, rank, blocking, 0),
        )
        if metas:
            self._metas.append(metas)

    @rule(data=st.data(), letter=letters, task=tasks)
    def release(self, data: st.DataObject, letter: str, task: str) -> None:
        if ids := self._some_ids(data, letter):
            self._agree(
                f"release_claims of {ids} for {task}",
                lambda client: client.release_claims(ids, self._id(letter), task),
            )

    @rule(data=st.data(), letter=letters, fields=some_fields, strange=st.sampled_from(["", "", "nobody"]))
    def get_samples(self, data: st.DataObject, letter: str, fields: list[str], strange: str) -> None:
        if ids := self._some_ids(data, letter):
            asked = [*ids, strange] if strange else ids
            self._agree(
                f"get_samples of {asked} with {fields}",
                lambda client: client.get_samples(asked, self._id(letter), fields),
            )

    @precondition(lambda self: bool(self._metas))
    @rule(data=st.data(), fields=st.one_of(st.none(), some_fields))
    def get_data(self, data: st.DataObject, fields: list[str] | None) -> None:
        metas = data.draw(st.sampled_from(self._metas))
        if next(iter(metas.values())).size:
            self._agree(
                f"get_data of an earlier meta with {fields}",
                lambda client: client.get_data(metas[client], fields),
            )

    @rule(data=st.data(), letter=letters, strange=st.sampled_from([None, None, "nobody"]))
    def clear(self, data: st.DataObject, letter: str, strange: str | None) -> None:
        ids = self._some_ids(data, letter)
        asked = [*ids, strange] if strange else ids
        if asked:
            self._agree(f"clear_samples of {asked}", lambda client: client.clear_samples(asked, self._id(letter)))

    @rule(letter=letters)
    def clear_all(self, letter: str) -> None:
        self._agree("clear_samples of all", lambda client: client.clear_samples(None, self._id(letter)))

    @rule(letter=letters, names=st.lists(tasks, min_size=1, unique=True))
    def status(self, letter: str, names: list[str]) -> None:
        self._agree(
            f"check_consumption_status of {names}",
            lambda client: client.check_consumption_status(self._id(letter), names),
        )

    @rule(letter=letters, task=tasks, fields=some_fields, size=st.integers(1, 4))
    def explain(self, letter: str, task: str, fields: list[str], size: int) -> None:
        self._agree(
            f"explain of {size} rows with {fields} for {task}",
            lambda client: client.explain(self._id(letter), task, fields, size),
        )

    @rule(letter=letters)
    def look(self, letter: str) -> None:
        self._agree("list_sample_ids", lambda client: client.list_sample_ids(self._id(letter)))
        self._agree("stats", lambda client: (client.stats().partitions, client.stats().rows))

    @rule()
    def save_and_load(self) -> None:
        old = (self._client, self._model)
        with tempfile.TemporaryDirectory(prefix="nrl-runs-") as name:
            for folder, client in zip(("client", "model"), old, strict=True):
                client.save_checkpoint(Path(name, folder), metadata={"n": 1})
            self.teardown()
            self._client, self._model = self._make(), ModelDataPlane(partition_mode=self._mode)
            folders = {self._client: Path(name, "client"), self._model: Path(name, "model")}
            self._agree("load_checkpoint", lambda client: client.load_checkpoint(folders[client]))
        self._metas = [{self._client: metas[old[0]], self._model: metas[old[1]]} for metas in self._metas]


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
        lists = (result.sample_ids, result.fields or None, result.sequence_lengths, result.tags)
        return f"a meta: {result.task_name}, {lists}, rank {result.extra_info.get('dp_rank')}"
    if isinstance(result, ClaimExplanation):
        return str({**vars(result), "rows_missing": dict(result.rows_missing)})
    if hasattr(result, "batch_size"):
        return str(columns_as_text(result, fields_of(result)))
    return repr(result)
