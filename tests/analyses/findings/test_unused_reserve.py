"""Unused reserve: whose blocks keep it is said only where they keep a share that matters."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import explain
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.findings import unused_reserve
from vramlens.analyses.findings.ranking import LEAST_SHARE

VARLEN = str(DATA / "recordings/gpt_varlen.pickle.xz")


def split_up_words() -> str:
    explanation = explain(VARLEN)
    assert isinstance(explanation, Explanation)
    return " ".join(word for finding in explanation.findings for word in finding.evidence)


@pytest.mark.parametrize(("least_share", "is_told"), [(LEAST_SHARE, True), (1.0, False)])
def test_blocks_that_keep_next_to_nothing_are_not_named(
    least_share: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused_reserve, "LEAST_SHARE", least_share)
    assert ("split up" in split_up_words()) == is_told
