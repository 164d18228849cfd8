"""Whether a recording shows training; and what is said of one that shows none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.recordings import DATA, event, snapshot
from support.vram_files import vram
from vramlens import Recording, load
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.trainable import adapter_names, stepped_bytes, trainable_bytes
from vramlens.analyses.attribution.training import Training
from vramlens.trace import AT_THE_END, TensorKind, TensorNames
from vramlens.units import MIB

FORWARD = [
    {"filename": "model.py", "line": 31, "name": "forward"},
    {"filename": "/torch/nn/modules/module.py", "line": 1, "name": "_call_impl"},
    {"filename": "serve.py", "line": 9, "name": "main"},
]
CHECKPOINT = [
    *FORWARD[:2],
    {"filename": "/torch/utils/checkpoint.py", "line": 1, "name": "forward"},
    FORWARD[2],
]
OF_A_GRADIENT = [{"filename": "/torch/autograd/__init__.py", "line": 1, "name": "grad"}, FORWARD[2]]
OF_BACKWARD = [{"filename": "/torch/_tensor.py", "line": 1, "name": "backward"}, FORWARD[2]]


class Program:
    """Events of a program, as an allocator records them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._address = 1 << 30

    def request(self, frames: list[dict[str, Any]], module: str = "", size: int = MIB) -> int:
        self._address += 2 * size
        self._add("alloc", self._address, size, frames=frames, user_metadata=module)
        return self._address

    def free(self, address: int, size: int = MIB) -> None:
        self._add("free_requested", address, size)
        self._add("free_completed", address, size)

    def fail(self) -> None:
        self._add("oom", 0, 64 * MIB, frames=FORWARD, device_free=0)

    def forward(
        self, is_kept: Callable[[int], bool], frames: list[dict[str, Any]] = FORWARD
    ) -> None:
        """A pass of 40 requests through a model; what is not kept goes two requests later."""
        brief: list[int] = []
        for number in range(40):
            line = {**frames[0], "line": number}
            address = self.request([line, *frames[1:]], f"model.layers.{number // 4}")
            if not is_kept(number):
                brief.append(address)
            if len(brief) > 2:
                self.free(brief.pop(0))
        for address in brief:
            self.free(address)

    def recorded(self, tmp_path: Path) -> Recording:
        return load(vram(tmp_path / "a.vram", snapshot(self.events, [])))

    def _add(self, action: str, address: int, size: int, **more: Any) -> None:
        when = len(self.events) + 1
        self.events.append(event(action, address, size, **{"time_us": when} | more))


def cache(number: int) -> bool:
    return number % 8 == 0


def graph(number: int) -> bool:
    return number % 4 != 0


def training_after(tmp_path: Path, program: Program) -> Training:
    return program.recorded(tmp_path).attribution().training


def test_passes_that_keep_only_caches_are_no_training(tmp_path: Path) -> None:
    server = Program()
    for _ in range(6):
        server.forward(cache)
    server.fail()
    recording = server.recorded(tmp_path)
    view = recording.attribution()
    assert view.training == Training.ABSENT
    kept = view.device.allocations.alive_after(view.device.out_of_memory[-1].event)
    assert set(view.categories.category[kept].tolist()) == {Category.OTHER}
    told = " ".join(
        f"{finding.title} {finding.fix} {finding.evidence}"
        for finding in recording.explain().findings
        if finding.id != "leak"  # its evidence says that there is no optimizer
    )
    for word in ("backward", "optimizer", "gradient", "checkpoint", "zero_grad"):
        assert word not in told


def test_passes_that_keep_their_graph_may_be_a_first_step(tmp_path: Path) -> None:
    program = Program()
    for _ in range(6):
        program.forward(graph)
    assert training_after(tmp_path, program) == Training.UNKNOWN


def test_a_rollout_may_end_in_a_pass_that_trains(tmp_path: Path) -> None:
    program = Program()
    for _ in range(6):
        program.forward(cache)
    program.forward(graph)
    assert training_after(tmp_path, program) == Training.UNKNOWN


def test_a_checkpointed_pass_keeps_nothing_either(tmp_path: Path) -> None:
    program = Program()
    for _ in range(6):
        program.forward(cache, CHECKPOINT)
    assert training_after(tmp_path, program) == Training.UNKNOWN


def test_one_pass_says_nothing(tmp_path: Path) -> None:
    program = Program()
    program.forward(cache)
    assert training_after(tmp_path, program) == Training.UNKNOWN


@pytest.mark.parametrize(
    ("frames", "training"), [(OF_A_GRADIENT, Training.ABSENT), (OF_BACKWARD, Training.SEEN)]
)
def test_a_derivative_without_a_model_is_no_training(
    tmp_path: Path, frames: list[dict[str, Any]], training: Training
) -> None:
    """A Jacobian by torch.func runs backward passes; so does a fit of bare tensors."""
    program = Program()
    for _ in range(4):
        saved = program.request(FORWARD[2:])
        program.request(frames)
        program.request([])
        program.free(saved)
    assert training_after(tmp_path, program) == training


@pytest.mark.parametrize("name", ["gpt.cap90", "maml.cap60"])
def test_real_training_is_seen(name: str) -> None:
    assert load(DATA / f"failures/{name}.vram").attribution().training == Training.SEEN


def named(*rows: tuple[str, TensorKind, int]) -> TensorNames:
    count = len(rows)
    return TensorNames(
        device=np.zeros(count, np.int32),
        address=np.arange(count, dtype=np.uint64),
        size_bytes=np.array([size for _, _, size in rows], np.int64),
        kind=np.array([kind for _, kind, _ in rows], np.uint8),
        use=np.zeros(count, np.uint8),
        time_us=np.full(count, AT_THE_END, np.int64),
        name=tuple(name for name, _, _ in rows),
    )


def test_adapters_are_told_by_name_and_by_the_packed_weight_beside_them() -> None:
    weight, buffer = TensorKind.PARAMETER, TensorKind.BUFFER
    peft = named(
        ("m.q.base_layer.weight", weight, 2**21),
        ("m.q.lora_A.default.weight", weight, 2**16),
        ("m.q.lora_B.default.weight", weight, 2**16),
    )
    assert adapter_names(peft) == {"m.q.lora_A.default.weight", "m.q.lora_B.default.weight"}
    packed = named(
        ("m.words.weight", weight, 2**27),
        ("m.q.codes", buffer, 2**21),
        ("m.q.scale", buffer, 2**17),
        ("m.q.down", weight, 2**17),
        ("m.q.up", weight, 2**17),
    )
    assert adapter_names(packed) == {"m.q.down", "m.q.up"}


def test_a_mask_or_a_norms_statistics_are_no_packed_weight() -> None:
    weight, buffer = TensorKind.PARAMETER, TensorKind.BUFFER
    plain = named(
        ("m.attn.weight", weight, 2**20),
        ("m.attn.bias", weight, 2**10),
        ("m.attn.mask", buffer, 2**24),
        ("m.norm.scale", weight, 2**10),
        ("m.norm.shift", weight, 2**10),
        ("m.norm.running_mean", buffer, 2**10),
    )
    assert adapter_names(plain) == frozenset()


def test_what_the_optimizer_has_is_known() -> None:
    """A body whose gradients nobody uses has no state; a frozen one has no gradients either."""
    recording = load(DATA / "faults/unstepped_body.vram")
    view = recording.attribution()
    rows = view.device.allocations.alive_after(len(view.device.events) - 1)
    sizes, names = view.device.allocations.requested_bytes, view.names
    parameters = {row: names.name(row) for row in names.of_kind(TensorKind.PARAMETER).tolist()}
    head = sum(int(sizes[row]) for row, name in parameters.items() if ".head." in name)
    every = sum(int(sizes[row]) for row in parameters)
    end = len(view.device.events)
    assert stepped_bytes(view, rows, end) == head
    assert trainable_bytes(view, rows, end) == every
