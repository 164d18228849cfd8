"""What comes first where there is no time to replay a failure, or a replay does not come to the same."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.explanation import Explanation
from vramlens.api import explain_recording

FAULTS = sorted(path.stem for path in (DATA / "faults").glob("*.vram"))


def first_advice(explanation: Explanation) -> str:
    return next(finding.id for finding in explanation.findings if finding.fix)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_code_comes_first_without_replay_too(name: str) -> None:
    recording = load(DATA / f"faults/{name}.vram")
    by_sums = explain_recording(recording, events_to_replay=0)
    if by_sums.failure is not None:
        assert first_advice(by_sums) == first_advice(explain_recording(recording))


def test_what_may_be_meant_stays_possible_without_replay() -> None:
    """A loop over tokens keeps what its one backward pass needs: that is no sure leak."""
    recording = load(DATA / "failures/policy_gradient.cap45.vram")
    findings = explain_recording(recording, events_to_replay=0).findings
    assert {finding.verdict for finding in findings if finding.id == "leak"} == {"possible"}
    assert findings[0].id == "process_limit"
