"""The rows of the table of findings that are about what optimizers have, and what they keep."""

from __future__ import annotations

from vramlens.analyses.findings.faults.frozen_in_optimizer import frozen_in_optimizer
from vramlens.analyses.findings.faults.models.earlier_optimizers import earlier_optimizers
from vramlens.analyses.findings.faults.models.left_in_groups import left_in_groups
from vramlens.analyses.findings.faults.models.replaced_states import replaced_states
from vramlens.analyses.findings.faults.models.saved_modules import saved_modules
from vramlens.analyses.findings.faults.models.trained_base import trained_base
from vramlens.analyses.findings.ranking import FindingRow
from vramlens.analyses.scene import Scene

OF_OPTIMIZERS: tuple[FindingRow[Scene], ...] = (
    FindingRow(
        id="earlier_optimizers",
        find=earlier_optimizers,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="optimizer_state",
    ),
    FindingRow(
        id="saved_modules",
        find=saved_modules,
        is_mended_in_code=True,  # the states to come are saved, too
        takes_place_of="optimizer_state",
    ),
    FindingRow(
        id="trained_base",
        find=trained_base,
        is_mended_in_code=True,  # the states to come are saved, too
        takes_place_of="optimizer_state",
    ),
    FindingRow(
        id="replaced_states",
        find=replaced_states,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="left_in_groups",
        find=left_in_groups,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="optimizer_state",
    ),
    FindingRow(
        id="frozen_in_optimizer",
        find=frozen_in_optimizer,
        is_mended_in_code=True,  # the vectors to come are shorter, too
        takes_place_of="optimizer_state",
    ),
)
"""Each takes the place of what says less of the same states."""
