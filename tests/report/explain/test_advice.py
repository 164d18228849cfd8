"""What comes next where a recording could not show the memory."""

from __future__ import annotations

import pytest

from vramlens.cli.main import main

JAX = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes."
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB)."
    " Tried to allocate 768.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for"
    " memory allocations (may cause system failure)."
)
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacity of 6.00 GiB of"
    " which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by"
    " PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "last"),
    [(JAX, "vramlens top --once"), (MPS, "print(torch.mps."), (CUDA, "vramlens run -o oom.vram ")],
)
def test_the_next_step_can_show_that_memory(text, last, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(text)
    assert main(["explain", str(log)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"  {last}")
