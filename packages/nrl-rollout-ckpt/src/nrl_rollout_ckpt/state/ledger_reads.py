"""What may be asked of the ledger at any time, without a cut."""

from __future__ import annotations

from typing import Final

from nrl_interfaces.rollout import EnvironmentEpisode

from nrl_rollout_ckpt.state.ledger_checks import UnknownGroupError
from nrl_rollout_ckpt.state.ledger_moves import keeps_episodes
from nrl_rollout_ckpt.state.ledger_states import PromptGroupPhase
from nrl_rollout_ckpt.state.records import PromptGroupRecoveryRecord

FORMER_ATTEMPTS_KEPT: Final = 65_536
"""How many attempts of groups that left are remembered."""


class LedgerReads:
    """Groups by id, in the order in which they came, and by batch."""

    def __init__(self) -> None:
        self._groups: dict[str, PromptGroupRecoveryRecord] = {}
        self._batches: dict[int, dict[str, None]] = {}  # ids by admission_id, in order
        self._attempt_uuids: set[str] = set()
        self._former_attempts: dict[str, None] = {}  # of groups that left, the oldest first
        self._next_admission_id = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> tuple[PromptGroupRecoveryRecord, ...]:
        """All groups, in the order in which they came."""
        return tuple(self._groups.values())

    @property
    def next_admission_id(self) -> int:
        """The number of the next batch."""
        return self._next_admission_id

    def get(self, group_id: str) -> PromptGroupRecoveryRecord:
        """Give a group.

        Raises:
            UnknownGroupError: If there is none with this id.
        """
        try:
            return self._groups[group_id]
        except KeyError:
            raise UnknownGroupError(group_id, "the ledger") from None

    def batch(self, admission_id: int) -> tuple[PromptGroupRecoveryRecord, ...]:
        """Give the groups of one batch that are still here; () where none is."""
        return tuple(self._groups[group_id] for group_id in self._batches.get(admission_id, ()))

    def target_steps(self) -> frozenset[int]:
        """Give the steps that admitted groups are stamped for."""
        firsts = (self._groups[next(iter(batch))].target_step for batch in self._batches.values())
        return frozenset(step for step in firsts if step is not None)

    def has_had_attempt(self, rollout_id: str) -> bool:
        """Whether an attempt is of a group that is here, or of one that left, of which an environment may hear later.

        Of those that left, the last `FORMER_ATTEMPTS_KEPT` are remembered.
        """
        attempt_uuid = rollout_id.rpartition("_a")[2]
        return attempt_uuid in self._attempt_uuids or attempt_uuid in self._former_attempts

    def active_episodes(self) -> tuple[EnvironmentEpisode, ...]:
        """Give the episodes that a restart can go on with, sorted by instance."""
        return tuple(sorted(episode for group in self._groups.values() for episode in keeps_episodes(group).values()))

    def redispatch_order(self) -> tuple[PromptGroupRecoveryRecord, ...]:
        """Give all groups in the order in which a restart dispatches them.

        Admitted ones first: they may be the only work that lets the trainer advance. Then by batch.
        """
        is_later = {PromptGroupPhase.ADMITTED: False, PromptGroupPhase.RESERVED: True}
        return tuple(sorted(self._groups.values(), key=lambda group: (is_later[group.phase], group.admission_id)))
