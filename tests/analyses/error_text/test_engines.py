"""Failures of vLLM and SGLang in their own logs, NCCL's buffers, and errors that are no memory's.

The lines are those of vllm-project/vllm#13882, sgl-project/sglang's logs and sources,
SemiAnalysisAI/InferenceX#2128, NVIDIA/nccl#660 and Comfy-Org/ComfyUI#4934.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from vramlens import explain
from vramlens.analyses.explanation import Explanation
from vramlens.read.engine_log_reader import EngineLogReader
from vramlens.read.oom.oom_text import find_oom_messages
from vramlens.report.explain.advice import next_command
from vramlens.report.explain.answer_words import headline
from vramlens.report.wording import capitalized
from vramlens.units import GIB, MIB

VLLM_BUDGET = """\
INFO 02-26 09:54:02 model_runner.py:1115] Loading model weights took 5.2032 GB
INFO 02-26 09:54:05 worker.py:267] Memory profiling takes 3.25 seconds
INFO 02-26 09:54:05 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB
INFO 02-26 09:54:05 worker.py:267] model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is -1.05GiB.
INFO 02-26 09:54:05 executor_base.py:111] # cuda blocks: 0, # CPU blocks: 4681
"""
VLLM_AT_START = (
    VLLM_BUDGET + "ValueError: No available memory for the cache blocks. Try increasing"
    " `gpu_memory_utilization` when initializing the engine.\n"
)
VLLM_SERVING = """\
INFO 12-22 10:55:34 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.95) = 75.29GiB
INFO 12-22 10:55:34 worker.py:241] model weights take 8.51GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 0.94GiB; the rest of the memory reserved for KV Cache is 65.58GiB.
"""
READY = "INFO:     Application startup complete.\n"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 79.25 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process"
    " has 77.75 GiB memory in use. Of the allocated memory 75.00 GiB is allocated by PyTorch, and"
    " 1.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
    " try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
    " documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n"
)
SGLANG = """\
[2025-08-08 03:34:38] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=13.91 GB, mem usage=1.25 GB.
[2025-08-08 03:34:38] KV Cache is allocated. #tokens: 104273, K size: 5.57 GB, V size: 5.57 GB
[2025-08-08 03:34:38] Memory pool end. avail mem=2.43 GB
"""
SGLANG_READY = "[2025-08-08 03:35:01] The server is fired up and ready to roll!\n"
SGLANG_AT_START = """\
Load weight end. quant=fp8, fmt=e4m3, avail mem=12.25 GB, mem usage=125.65 GB.
ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.88. Raise --mem-fraction-static above 0.912 (minimum viable = 1 - available/pre = 0.9113). If using speculative decoding, draft weights are now counted.
"""
NCCL = "".join(
    f"vm2:15364:15375 [0] NCCL INFO transport/net.cc:377 Cuda Alloc Size 33554432 pointer 0x7fbe{n:02x}000000\n"
    for n in range(20)
)


def explained(tmp_path: Path, text: str) -> Explanation:
    path = tmp_path / "job.log"
    path.write_text(text)
    return explain(path)


def first_fix(explanation: Explanation) -> str:
    return next(one.fix for one in explanation.findings if one.fix)


def test_at_start_vllm_needs_a_larger_share_and_the_log_says_which(tmp_path: Path) -> None:
    found = explained(tmp_path, VLLM_AT_START)
    assert first_fix(found).startswith("raise gpu_memory_utilization above 0.84 (it is 0.70;")
    assert found.findings[0].title.startswith("Weights 5.20 GiB, activations 1.42 GiB and")
    assert sum(row.bytes for row in found.ledger) == 8 * GIB
    assert [row.kind for row in found.ledger][:2] == ["engine_weights", "engine_activations"]


def test_while_serving_vllm_needs_a_smaller_share(tmp_path: Path) -> None:
    found = explained(tmp_path, VLLM_SERVING + READY + OOM)
    assert first_fix(found).startswith("lower gpu_memory_utilization from 0.95 to 0.92, or lower")
    assert not any(one.id == "device_full" for one in found.findings)


def test_an_engine_without_a_server_is_ready_when_it_is_warm(tmp_path: Path) -> None:
    warm = "INFO init engine (profile, create kv cache, warmup model) took 30.2 seconds\n"
    found = explained(tmp_path, VLLM_SERVING + warm + OOM)
    assert first_fix(found).startswith("lower gpu_memory_utilization from 0.95 to 0.92, or lower")


def test_the_names_of_engines_keep_their_letters() -> None:
    assert capitalized("vLLM was already serving") == "vLLM was already serving"
    assert capitalized("this is one of its words") == "This is one of its words"


def test_between_both_it_is_the_graphs(tmp_path: Path) -> None:
    assert "enforce_eager=True" in first_fix(explained(tmp_path, VLLM_SERVING + OOM))


def test_before_the_cache_the_share_is_not_the_reason(tmp_path: Path) -> None:
    loaded = (
        "INFO 03-24 [gpu_model_runner.py:1176] Model loading took 14.9888 GB and 28.719 seconds\n"
    )
    fix = first_fix(explained(tmp_path, loaded + OOM))
    assert fix.startswith("lower max_num_batched_tokens, max_num_seqs or max_model_len")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (SGLANG_AT_START, "raise --mem-fraction-static above 0.912"),
        (SGLANG + SGLANG_READY + OOM, "lower --mem-fraction-static, or lower --chunked-prefill"),
        (SGLANG + OOM, "lower --mem-fraction-static, or lower --cuda-graph-max-bs"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "raise"),
    ],
)
def test_sglang_is_told_opposite_cures(tmp_path: Path, text: str, fix: str) -> None:
    assert first_fix(explained(tmp_path, text)).startswith(fix)


def test_nccls_lines_are_a_part_of_what_lies_outside(tmp_path: Path) -> None:
    found = explained(tmp_path, NCCL + NCCL + OOM)
    (nccl,) = [row for row in found.ledger if row.kind == "nccl"]
    assert nccl.bytes == 20 * 32 * MIB, "a pointer that is printed twice counts once"
    whole = explained(tmp_path, OOM)
    assert sum(row.bytes for row in found.ledger) == sum(row.bytes for row in whole.ledger)
    assert any(one.id == "nccl_memory" and "640.00 MiB" in one.title for one in found.findings)


def test_a_fork_is_no_lack_of_memory(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with"
        " multiprocessing, you must use the 'spawn' start method\n"
    )
    found = explained(tmp_path, text)
    assert headline(found).startswith("This is not a memory shortage: CUDA was already in use when")
    assert "spawn" in first_fix(found)
    assert "no memory ran out" in next_command(found).why
    assert "refused" not in str(found)


def test_one_failure_in_several_lines_is_not_several(tmp_path: Path) -> None:
    text = "!!! Exception during processing !!! Allocation on device \n"
    text += "torch.OutOfMemoryError: Allocation on device \n"
    assert "the last of" not in str(explained(tmp_path, text))


def test_comfyui_says_only_that_an_allocation_failed(tmp_path: Path) -> None:
    text = "torch.OutOfMemoryError: Allocation on device \n\nGot an OOM, unloading all loaded models.\n"
    fix = first_fix(explained(tmp_path, text))
    assert "--lowvram" in fix
    assert "--disable-cuda-malloc" in fix


def test_talk_of_an_allocation_on_a_device_is_no_error() -> None:
    assert not find_oom_messages(b"Memory allocation on device\nAllocation on device went well\n")


@pytest.mark.parametrize("size", [1, 7, 300, 1 << 16])
def test_pieces_of_any_size_are_read_alike(size: int) -> None:
    text = (VLLM_BUDGET + "x" * 3000 + "\n" + READY + NCCL).encode()
    reader = EngineLogReader(io.BytesIO(text))
    while reader.read(size):
        pass
    budget = reader.log.budget
    assert budget is not None
    assert (budget.weights_bytes, budget.is_ready) == (round(5.2 * GIB), True)
    assert budget.cache_bytes == round(-1.05 * GIB)
    assert reader.log.nccl_bytes == {(15364, 0): 640 * MIB}
