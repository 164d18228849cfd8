"""What the budgets that vLLM and SGLang print, and NCCL's own lines, say about a failure.

A failure at start-up and one while serving have opposite cures: at start-up the engine's share of
the GPU is too small for weights and cache; later its cache leaves too little for a step.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import RowConfidence, Verdict
from vramlens.ground.vocabulary import LedgerKind, LedgerRow
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace.engine_log import EngineBudget, EngineLog
from vramlens.units import MIB, format_size

_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
_SHARES = {"vllm": "gpu_memory_utilization", "sglang": "--mem-fraction-static"}
_PYTORCH = ("cuda", "hip", "device", "driver", "cublas")
_MOST_SHARE = 0.98
"""Of a GPU: the context and the driver have the rest."""
_LEAST_NCCL = 16 * MIB
_SGLANG_LEAST = re.compile(r"Raise --mem-fraction-static above (0\.\d{1,4})")
_OUTSIDE = ("this_process_other", "outside_pytorch")
# By engine: what to lower while it serves; what to lower where it makes its CUDA graphs; what where
# it tries its largest step.
_WHILE_SERVING = {
    "vllm": "max_num_batched_tokens or max_num_seqs",
    "sglang": "--chunked-prefill-size or --max-running-requests",
}
_WHILE_CAPTURING = {
    "vllm": "max_num_seqs, or set enforce_eager=True",
    "sglang": "--cuda-graph-max-bs, or give --disable-cuda-graph",
}
_WHILE_PROFILING = {
    "vllm": "max_num_batched_tokens, max_num_seqs or max_model_len",
    "sglang": "--chunked-prefill-size or --context-length",
}


def engine_findings(message: OomMessage, log: EngineLog) -> tuple[Finding, ...]:
    """What an engine's own figures call for, and what NCCL's lines sum to."""
    findings = []
    if message.kind in _NAMES:
        findings.append(_at_start(message, log.budget))
    elif message.kind in _PYTORCH and log.budget is not None:
        findings.append(_in_a_step(message, log.budget))
    findings.append(_about_nccl(message, log))
    return tuple(finding for finding in findings if finding is not None)


def instead_of_general_advice(
    about_engine: tuple[Finding, ...], general: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """The findings, without general advice that the engine's own makes useless."""
    ids = {finding.id for finding in about_engine}
    if ids & {"vllm_memory", "sglang_memory"}:
        ids.add("device_full")
    return (*about_engine, *(finding for finding in general if finding.id not in ids))


def _at_start(message: OomMessage, budget: EngineBudget | None) -> Finding | None:
    """The share of the GPU that start-up needs, where the log tells it."""
    if smallest_fraction := _SGLANG_LEAST.search(message.text):
        return Finding(
            "sglang_memory",
            Verdict.PROVEN,
            "The weights take all of SGLang's share of the GPU, so nothing is left for the KV "
            "cache",
            fix=f"raise --mem-fraction-static above {smallest_fraction[1]}, or raise --tp",
        )
    return None if budget is None else _share_too_small(budget)


def _share_too_small(budget: EngineBudget) -> Finding | None:
    """The finding that vLLM needs more than its share before it creates its cache."""
    parts, total, utilization = budget.parts, budget.total_bytes, budget.utilization
    if budget.engine != "vllm" or parts is None or not total or utilization is None:
        return None
    needed, allowed = sum(parts), int(total * utilization)
    if needed < allowed:
        return None
    share = math.ceil(100 * needed / total) / 100
    weights, activations, outside = map(format_size, parts)
    title = (
        f"Weights {weights}, activations {activations} and {outside} outside PyTorch are "
        f"{format_size(needed - allowed)} more than vLLM's share of {format_size(allowed)}"
    )
    if share > _MOST_SHARE:
        fix = "raise tensor_parallel_size, quantize the weights, or lower max_num_batched_tokens"
    else:
        fix = (
            f"raise gpu_memory_utilization above {share:.2f} (it is {utilization:.2f}; at"
            " most what nvidia-smi shows as free), or lower max_num_batched_tokens"
        )
    return Finding("vllm_memory", Verdict.PROVEN, title, needed - allowed, fix=fix)


def _in_a_step(message: OomMessage, budget: EngineBudget) -> Finding:
    """What PyTorch's own error means in an engine, by how far its start had come."""
    name, engine = _NAMES[budget.engine], budget.engine
    cache_bytes = budget.cache_bytes or 0
    cache = f" of {format_size(cache_bytes)}" if cache_bytes > 0 else ""
    if budget.is_ready:
        title = (
            f"{name} was already serving: its KV cache{cache} leaves too little memory for this "
            "step"
        )
        fix = f"lower {_lower_share(message, budget)}, or lower {_WHILE_SERVING[engine]}"
    elif budget.has_cache:
        title = (
            f"{name} had created its KV cache{cache} and failed in what comes next: CUDA "
            "graphs, warm-up"
        )
        fix = f"lower {_lower_share(message, budget)}, or lower {_WHILE_CAPTURING[engine]}"
    else:
        weights = f" ({format_size(budget.weights_bytes)})" if budget.weights_bytes else ""
        title = f"{name} had loaded its weights{weights} and failed before it created the KV cache"
        fix = f"lower {_WHILE_PROFILING[engine]}: its share of the GPU is not the cause"
    return Finding(f"{engine}_memory", Verdict.LIKELY, title, message.tried_bytes, fix=fix)


def _lower_share(message: OomMessage, budget: EngineBudget) -> str:
    """The engine's share, with the value that leaves room for the request where that is known."""
    name, total = _SHARES[budget.engine], budget.total_bytes
    if budget.utilization is None or not total or message.tried_bytes is None:
        return name
    share = math.floor(100 * (budget.utilization - message.tried_bytes / total)) / 100
    return f"{name} from {budget.utilization:.2f} to {share:.2f}" if share > 0 else name


def engine_ledger(budget: EngineBudget | None) -> tuple[LedgerRow, ...]:
    """The device's memory by vLLM's own figures; () where they do not close."""
    if budget is None or not budget.total_bytes or budget.parts is None:
        return ()
    name = _NAMES[budget.engine]
    weights_bytes, activations_bytes, non_torch_bytes = budget.parts
    rows = [
        _row(LedgerKind.ENGINE_WEIGHTS, weights_bytes, f"{name}'s weights"),
        _row(LedgerKind.ENGINE_ACTIVATIONS, activations_bytes, f"{name}'s largest step"),
        _row(LedgerKind.THIS_PROCESS_OTHER, non_torch_bytes, f"outside PyTorch, by {name}"),
        _row(LedgerKind.ENGINE_CACHE, max(0, budget.cache_bytes or 0), f"{name}'s KV cache"),
    ]
    outside_bytes = budget.total_bytes - sum(row.bytes for row in rows)
    if outside_bytes < 0:
        return ()
    rows.append(
        LedgerRow(
            LedgerKind.UNKNOWN, outside_bytes, RowConfidence.UNKNOWN, f"outside {name}'s share"
        )
    )
    return tuple(row for row in rows if row.bytes)


def _row(kind: LedgerKind, size_bytes: int, note: str) -> LedgerRow:
    return LedgerRow(kind, size_bytes, RowConfidence.INFERRED, note)


def nccl_bytes(message: OomMessage, log: EngineLog) -> int:
    """What NCCL's lines sum to on the failed device: of the process with most; 0 without any."""
    return max(
        (size for (_, device), size in log.nccl_bytes.items() if message.device in (None, device)),
        default=0,
    )


def _about_nccl(message: OomMessage, log: EngineLog) -> Finding | None:
    nccl_size = nccl_bytes(message, log)
    if nccl_size < _LEAST_NCCL:
        return None
    return Finding(
        "nccl_memory",
        Verdict.LIKELY,
        f"NCCL's log lines add up to {format_size(nccl_size)} of buffers on this GPU, outside "
        "PyTorch's cache",
        nccl_size,
        fix="fewer process groups or channels (NCCL_MAX_NCHANNELS), or a smaller NCCL_BUFFSIZE",
    )


def with_nccl(
    ledger: tuple[LedgerRow, ...], message: OomMessage, log: EngineLog
) -> tuple[LedgerRow, ...]:
    """The ledger with NCCL's part told apart from what lies outside PyTorch, where it fits."""
    nccl_size = nccl_bytes(message, log)
    outside = next((row for row in ledger if row.kind in _OUTSIDE), None)
    if outside is None or not 0 < nccl_size <= outside.bytes:
        return ledger
    at = ledger.index(outside)
    nccl = LedgerRow(LedgerKind.NCCL, nccl_size, RowConfidence.INFERRED, "from NCCL's log lines")
    remainder = replace(outside, bytes=outside.bytes - nccl_size)
    return (*ledger[:at], nccl, *([remainder] if remainder.bytes else []), *ledger[at + 1 :])
