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


@pytest.mark.parametrize(
    ("prompts", "generates", "times"),
    [(8, True, 8), (32, True, 2), (64, True, 0), (48, True, 0), (8, False, 0), (0, True, 0)],
)
def test_caches_of_more_sequences_than_prompts(
    tmp_path: Path, prompts: int, times: int, *, generates: bool
) -> None:
    call: tuple[Frame, ...] = (GENERATE,) if generates else ()
    run = MadeRun(
        {"prompts": ((USER, 30, "main"),), "cache": (CACHE, *call, (USER, 75, "rollout"))}
    )
    if prompts:
        run.asks("prompts", 1, name="batch['input_ids']", shape=f"int64[{prompts}, 128]")
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
