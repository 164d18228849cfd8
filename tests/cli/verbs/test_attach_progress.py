"""What an attach says while it waits."""

from __future__ import annotations

import pytest

from vramlens.cli.verbs.running import attach


@pytest.mark.parametrize(
    ("total", "steps", "told"),
    [
        (12, 5, "step 5 of 12"),
        (12, 12, "step 12 of 12"),
        (12, 13, "waiting for a step of an optimizer, or a call of a model"),
        (None, 1300, "step 1,300"),
        (12, 0, ""),
    ],
)
def test_no_step_is_told_beyond_those_asked_for(
    total: int | None, steps: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(attach, "say", said.append)
    attach._StepTeller(total).tell(steps)
    assert said == ([told] if told else [])
