"""Training that never ran: what one rank of a job asks its simulated GPU for, step by step.

A fault is a subclass of ``Habit`` that does something besides, at moments that a real program has:
before training, when an activation is asked for, at the end of a forward pass, of a step, of all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from support.simulated_gpu import MIB, Block, Frame, SimulatedGpu, Stack

TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
START_US = 1_795_300_000_000_000


def frame(file: str, line: int, name: str) -> Frame:
    return {"name": name, "filename": file, "line": line}


MAIN = (frame("train/train.py", 88, "main"), frame("train/train.py", 97, "<module>"))
LOOP = (frame("train/train.py", 61, "train_step"), *MAIN)
EVALUATION = (frame("train/evaluate.py", 31, "evaluate"), frame("train/train.py", 74, "main"))
VALIDATION = (frame("train/validate.py", 39, "validate"), frame("train/train.py", 66, "train_step"))
CALL = (
    frame(f"{TORCH}/nn/modules/module.py", 1790, "_call_impl"),
    frame(f"{TORCH}/nn/modules/module.py", 1779, "_wrapped_call_impl"),
)
DDP = (
    frame(f"{TORCH}/nn/parallel/distributed.py", 1524, "_run_ddp_forward"),
    frame(f"{TORCH}/nn/parallel/distributed.py", 1699, "forward"),
)
BUILD = (
    frame(f"{TORCH}/nn/modules/module.py", 1370, "convert"),
    frame(f"{TORCH}/nn/modules/module.py", 965, "_apply"),
    frame(f"{TORCH}/nn/modules/module.py", 1384, "to"),
    frame("train/train.py", 22, "build"),
    *MAIN,
)
BUCKETS = (
    frame(f"{TORCH}/nn/parallel/distributed.py", 1255, "_ddp_init_helper"),
    frame(f"{TORCH}/nn/parallel/distributed.py", 896, "__init__"),
    frame("train/train.py", 27, "build"),
    *MAIN,
)
ADAM = (
    frame(f"{TORCH}/optim/adam.py", 178, "_init_group"),
    frame(f"{TORCH}/optim/adam.py", 238, "step"),
    frame(f"{TORCH}/optim/optimizer.py", 533, "wrapper"),
    *LOOP,
)
ADAM_TEMPORARY = (
    frame(f"{TORCH}/optim/adam.py", 791, "_multi_tensor_adam"),
    frame(f"{TORCH}/optim/adam.py", 248, "step"),
    frame(f"{TORCH}/optim/optimizer.py", 533, "wrapper"),
    *LOOP,
)
SEND = (
    frame(f"{TORCH}/distributed/distributed_c10d.py", 2100, "batch_isend_irecv"),
    frame("train/pipeline.py", 40, "exchange"),
    *LOOP,
)
BATCH = (frame("train/train.py", 58, "to_device"), *LOOP)
LINEAR, NORM, CONV = "nn/modules/linear.py", "nn/modules/normalization.py", "nn/modules/conv.py"


@dataclass(frozen=True)
class Operation:
    """One kept activation of a layer, in multiples of tokens times width."""

    module: str | None
    file: str
    line: int
    function: str
    width: float
    expert: bool = False


ATTENTION = (
    Operation(NORM, "train/model.py", 36, "forward", 1),
    Operation(LINEAR, "train/model.py", 36, "forward", 3),
    Operation(None, "train/model.py", 37, "forward", 1),
    Operation(LINEAR, "train/model.py", 38, "forward", 1),
)
FEED_FORWARD = (
    Operation(NORM, "train/model.py", 41, "forward", 1),
    Operation(LINEAR, "train/model.py", 41, "forward", 4),
    Operation(None, "train/model.py", 41, "forward", 4),
    Operation(LINEAR, "train/model.py", 42, "forward", 1),
)
EXPERTS = (
    Operation(LINEAR, "train/moe.py", 44, "route", 0.1),
    Operation(None, "train/moe.py", 52, "dispatch", 1, expert=True),
    Operation(LINEAR, "train/moe.py", 71, "experts", 4, expert=True),
    Operation(None, "train/moe.py", 72, "experts", 4, expert=True),
    Operation(LINEAR, "train/moe.py", 73, "experts", 1, expert=True),
)
CONVOLUTIONS = (
    Operation(CONV, "train/resnet.py", 61, "forward", 4),
    Operation("nn/modules/batchnorm.py", "train/resnet.py", 61, "forward", 4),
    Operation(None, "train/resnet.py", 62, "forward", 4),
    Operation(CONV, "train/resnet.py", 63, "forward", 4),
)
LAYERS = {
    "gpt": ATTENTION + FEED_FORWARD,
    "moe": ATTENTION + EXPERTS,
    "conv": CONVOLUTIONS,
    "pipeline": ATTENTION + FEED_FORWARD,
}
HEAD = Operation(LINEAR, "train/model.py", 53, "forward", 1)
LOSS = Operation("nn/functional.py", "train/train.py", 63, "loss", 1)


_CALLERS = {"evaluation": EVALUATION, "validation": (*VALIDATION, *MAIN)}
"""Who runs the model outside of training steps."""


@cache
def stack_of(operation: Operation, outside: str) -> Stack:
    """The frames of an activation: in a training step, or outside of it."""
    inner: Stack = ()
    if operation.module:
        inner = (frame(f"{TORCH}/{operation.module}", 134, "forward"), *CALL)
    if operation is LOSS:
        return (*inner, frame(LOSS.file, LOSS.line, LOSS.function), *LOOP)
    own = (frame(operation.file, operation.line, operation.function), *CALL)
    model = (frame("train/model.py", 50, "forward"), *CALL)
    caller = _CALLERS.get(outside, (*DDP, *CALL, *LOOP))
    return (*inner, *own, *model, *caller)


@dataclass(frozen=True)
class Model:
    """What all ranks of a job run.

    Attributes:
        kind: a key of LAYERS.
        unit: bytes of tokens times width.
        head: bytes of the logits.
        parameter: bytes of the smallest matrix of a layer.
        varied: how far the batches of single steps lie apart, from 0 to 1.
    """

    kind: str
    layers: int
    unit: int
    head: int
    parameter: int
    steps: int
    varied: float = 0.0
    marks: bool = True


class Habit:
    """What one rank does besides the training that all do."""

    def begin(self, rank: SimulatedRank) -> None:
        """Before training."""

    def factor(self, operation: Operation, step: int) -> float:
        """How many times larger an activation is."""
        return 1.0

    def forward_done(self, rank: SimulatedRank, step: int) -> None:
        """Between forward and backward."""

    def step_done(self, rank: SimulatedRank, step: int) -> None:
        """After the optimizer's step."""

    def end(self, rank: SimulatedRank) -> None:
        """After training."""


@dataclass
class SimulatedRank:
    """A rank's run.

    Attributes:
        stop_after: the step in whose backward pass the process is ended; None for none.
        layers: where not as many as the model has (pipeline stages).
    """

    model: Model
    gpu: SimulatedGpu
    chance: random.Random
    habits: Sequence[Habit] = ()
    stop_after: int | None = None
    layers: int | None = None
    kept: list[Block] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    gradients: list[Block] = field(default_factory=list)
    activations: list[Block] = field(default_factory=list)
    noise: float = 1.0

    def run(self) -> bool:
        """Trains to the end; whether it came there."""
        self.noise = 1 + self.chance.uniform(-0.01, 0.01)
        self._build()
        for habit in self.habits:
            habit.begin(self)
        for step in range(self.model.steps):
            self._step(step)
            if step == self.stop_after:
                return False
        for habit in self.habits:
            habit.end(self)
        return True

    def keep(self, size: int, stack: Stack) -> Block:
        block = self.gpu.alloc(size, stack)
        self.kept.append(block)
        return block

    def drop(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.gpu.free(block)

    def forward(self, step: int, outside: str, scale: float = 1.0) -> list[Block]:
        """The activations of a forward pass, in order; the logits are the last."""
        unit = self.model.unit
        operations = LAYERS[self.model.kind] * self._layer_count
        blocks = [
            self._activation(operation, unit, step, outside, scale) for operation in operations
        ]
        blocks.append(self._activation(HEAD, self.model.head, step, outside, scale))
        return blocks

    @property
    def _layer_count(self) -> int:
        return self.model.layers if self.layers is None else self.layers

    def _activation(
        self, operation: Operation, unit: int, step: int, outside: str, scale: float
    ) -> Block:
        factor = scale * self.noise
        for habit in self.habits:
            factor *= habit.factor(operation, step)
        self.gpu.wait(9)
        return self.gpu.alloc(int(unit * operation.width * factor), stack_of(operation, outside))

    def _build(self) -> None:
        matrices = (3, 1, 4, 4) if self.model.kind != "conv" else (2, 2)
        for _ in range(self._layer_count):
            for times in matrices:
                size = times * self.model.parameter
                self.parameters.append(size)
                self.gpu.alloc(size, BUILD)
        embedding = 6 * self.model.parameter
        self.parameters.append(embedding)
        self.gpu.alloc(embedding, BUILD)
        if self.model.kind != "pipeline":
            self.gpu.alloc(sum(self.parameters), BUCKETS)

    def _step(self, step: int) -> None:
        gpu = self.gpu
        length = self._length(step)
        gpu.mark("Optimizer.zero_grad#AdamW.zero_grad", "START")
        self.drop(self.gradients)
        self.gradients = []
        gpu.mark("Optimizer.zero_grad#AdamW.zero_grad", "END")
        batch = gpu.alloc(max(512, int(self.model.unit * length) // 64), BATCH)
        is_stage = self.model.kind == "pipeline"
        received = [gpu.alloc(self.model.unit, SEND)] if is_stage else []
        self.activations = self.forward(step, "training", length)
        loss = self._activation(LOSS, self.model.head, step, "training", length)
        for habit in self.habits:
            habit.forward_done(self, step)
        self._backward(step, loss)
        if step == self.stop_after:
            return
        self.drop([batch, *received])
        self._optimize(step)
        for habit in self.habits:
            habit.step_done(self, step)
        gpu.wait(40_000)

    def _length(self, step: int) -> float:
        if not self.model.varied:
            return 1 + self.chance.uniform(-0.003, 0.003)
        return 1 - self.chance.uniform(0, self.model.varied)

    def _backward(self, step: int, loss: Block) -> None:
        gpu = self.gpu
        incoming = gpu.alloc(loss.requested, ())
        gpu.free(loss)
        per_layer = len(LAYERS[self.model.kind])
        waiting = list(reversed(self.parameters))
        count = len(self.activations)
        for number, block in enumerate(reversed(self.activations)):
            if step == self.stop_after and number > count // 2:
                return
            outgoing = gpu.alloc(block.requested, ())
            gpu.free(incoming)
            if block not in self.kept:
                gpu.free(block)
            incoming = outgoing
            if number % per_layer in (0, 1, 3, 5) and waiting:
                self.gradients.append(gpu.alloc(waiting.pop(0), ()))
            gpu.wait(11)
        gpu.free(incoming)
        self.gradients.extend(gpu.alloc(size, ()) for size in waiting)
        self.activations = []

    def _optimize(self, step: int) -> None:
        gpu = self.gpu
        gpu.mark("Optimizer.step#AdamW.step", "START")
        if step == 0:
            for size in self.parameters:
                gpu.alloc(size, ADAM)
                gpu.alloc(size, ADAM)
        temporary = [gpu.alloc(size, ADAM_TEMPORARY) for size in self.parameters]
        self.drop(temporary)
        gpu.mark("Optimizer.step#AdamW.step", "END")


def random_model(chance: random.Random, kind: str, *, varied: float = 0.0) -> Model:
    return Model(
        kind=kind,
        layers=chance.randrange(3, 8),
        unit=chance.randrange(3 * MIB, 14 * MIB),
        head=chance.randrange(20 * MIB, 120 * MIB),
        parameter=chance.randrange(MIB, 7 * MIB),
        steps=chance.randrange(5, 9),
        varied=varied,
        marks=chance.random() < 0.6,
    )
