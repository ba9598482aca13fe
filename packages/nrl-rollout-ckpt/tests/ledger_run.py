"""A ledger with one batch, for tests."""

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nrl_interfaces.rollout import PromptRef, RestoredEnvironmentRollouts
from nrl_rollout_ckpt.state.barrier import DataPlaneMutationCut
from nrl_rollout_ckpt.state.ledger import RolloutRecoveryLedger
from nrl_rollout_ckpt.state.ledger_checks import check_groups
from nrl_rollout_ckpt.state.ledger_states import (
    RecoveryGranularity,
    RecoveryTargetLevel,
)
from nrl_rollout_ckpt.state.payloads import saved_prompt
from nrl_rollout_ckpt.state.records import Prompt, PromptGroupRecoveryRecord, SiblingSealResult

WHOLE, SIBLING = RecoveryGranularity.PROMPT_GROUP, RecoveryGranularity.SIBLING
LEVEL = RecoveryTargetLevel
CUT = DataPlaneMutationCut("other")
RESULT = SiblingSealResult({"text": "two", "ids": torch.tensor([2])}, 1.0)
NOTHING = RestoredEnvironmentRollouts()


class Run:
    """A ledger with one batch."""

    def __init__(self, prompts: int = 1, size: int = 2, granularity: Any = SIBLING, level: Any = LEVEL.SIBLING) -> None:
        counter = itertools.count()
        self.new_id = lambda: f"{next(counter):032x}"
        self.ledger = RolloutRecoveryLedger()
        self.granularity, self.level, self.size = granularity, level, size
        self.group_id = self.reserve(prompts)[0].group_id if prompts else ""

    def reserve(self, prompts: int) -> tuple[PromptGroupRecoveryRecord, ...]:
        batch = [Prompt(PromptRef(f"p{number}"), {"text": f"What is {number}?"}) for number in range(prompts)]
        return self.ledger.reserve_batch(
            CUT,
            [(prompt, saved_prompt(prompt, whole=True)) for prompt in batch],
            expected_generations=self.size,
            granularity_of=lambda _: self.granularity,
            restore_level=self.level,
            new_id=self.new_id,
        )

    @property
    def group(self) -> PromptGroupRecoveryRecord:
        return self.ledger.get(self.group_id)

    @property
    def attempts(self) -> list[str]:
        return [sibling.current.status.value for sibling in self.group.siblings]

    def dispatch(self, instance_id: str | None = None) -> "Run":
        for group in self.ledger.batch(self.group.admission_id):
            self.ledger.mark_group_admitted(CUT, group.group_id, target_step=3, start_weight=2)
        self.ledger.mark_group_dispatched(CUT, self.group_id, None, instance_id)
        return self

    def seal(self, *indices: int) -> "Run":
        for index in indices:
            self.ledger.mark_sibling_sealed(CUT, self.group_id, index, RESULT)
        return self

    def refuses(self, error: type[BaseException], match: str, call: Callable[[], object]) -> None:
        before, next_id = self.ledger.groups, self.ledger.next_admission_id
        with pytest.raises(error, match=match) as caught:
            call()
        assert all(now is then for now, then in zip(self.ledger.groups, before, strict=True))
        assert self.ledger.next_admission_id == next_id
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        check_groups(self.ledger.groups)
