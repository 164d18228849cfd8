"""What serving engines and NCCL say of their own memory."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineBudget:
    """What a serving engine printed of its memory; what it did not print is None.

    Attributes:
        engine: vllm or sglang.
        total_bytes: the device's memory.
        utilization: the share of it that the engine may take.
        weights_bytes, non_torch_bytes, activations_bytes, cache_bytes: what it takes; the cache is
            negative where the rest is more than the share.
        has_cache: whether its cache was made.
        is_ready: whether it served already.
    """

    engine: str
    total_bytes: int | None = None
    utilization: float | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    activations_bytes: int | None = None
    cache_bytes: int | None = None
    has_cache: bool = False
    is_ready: bool = False

    @property
    def parts(self) -> tuple[int, int, int] | None:
        """Weights, activations and what lies outside PyTorch; None unless all are printed."""
        weights, activations = self.weights_bytes, self.activations_bytes
        if weights is None or activations is None or self.non_torch_bytes is None:
            return None
        return weights, activations, self.non_torch_bytes


@dataclass(slots=True)
class EngineLog:
    """What a log says beside its errors.

    Attributes:
        budget: of the last engine that spoke; None where none did.
        nccl_bytes: by process and device, what NCCL's lines sum to (``NCCL_DEBUG_SUBSYS=ALLOC``).
    """

    budget: EngineBudget | None = None
    nccl_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
