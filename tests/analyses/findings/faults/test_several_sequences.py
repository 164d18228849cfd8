"""Several sequences for each prompt, beside one for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/rollout.py"
GENERATE: Frame = (
    "/opt/lib/python3.12/site-packages/transformers/generation/utils.py",
    2500,
    "generate",
)
CACHE: Frame = ("/opt/lib/python3.12/site-packages/transformers/cache_utils.py", 101, "update")


EXPAND: Frame = (GENERATE[0], 900, "_expand_inputs_for_generation")
MIB_OF_ROW = 128 * 8 / MIB
"""128 tokens of a prompt."""


@pytest.mark.parametrize(
    ("prompts", "other", "expands", "times"),
    [
        (8, 0, True, 8),
        (32, 0, True, 2),
        (8, 4, True, 8),  # another table of tokens is there
        (64, 0, True, 0),
        (8, 0, False, 0),  # the batch of a training step beside another text that is generated
        (0, 1, True, 0),
    ],
)
def test_caches_of_more_sequences_than_prompts(
    tmp_path: Path, prompts: int, other: int, times: int, *, expands: bool
) -> None:
    run = MadeRun(
        {
            "prompts": ((USER, 30, "main"),),
            "expanded": (EXPAND, GENERATE, (USER, 75, "rollout")),
            "cache": (CACHE, GENERATE, (USER, 75, "rollout")),
        }
    )
    for rows, length in ((other, 50), (prompts, 128)):
        if rows:
            mib = rows * length * 8 / MIB
            run.asks("prompts", mib, name="batch['input_ids']", shape=f"int64[{rows}, {length}]")
    if expands:
        run.asks("expanded", 64 * MIB_OF_ROW)
    for layer in range(4):
        for part in ("keys", "values"):
            name = f"DynamicCache.layers[{layer}].{part}"
            run.asks("cache", 16, name=name, shape="bfloat16[64, 8, 128, 128]")
    finding = finding_of(run.fails("cache", 100, tmp_path), "several_sequences")
    assert (finding is not None) == bool(times)
    if finding is not None:
        assert f"{times} sequences for each of {prompts} prompts" in finding.title
        assert finding.bytes == 128 * MIB - 128 * MIB // times
        assert "num_return_sequences=1" in (finding.fix or "")
