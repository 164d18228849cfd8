"""A fine-tuning script as people write it, with known leaks; it knows nothing of vramlens. Run by
gpu_trainer_leaks.py.

python -m vramlens run --leaks -o FOLDER/NAME.vram trainer_jobs.py --job NAME --out FOLDER

It writes ``FOLDER/NAME.rank0.json``: what PyTorch's allocator counted at each step's end, and which
of its own lines keep.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

ON_GPU = torch.cuda.is_available()
LAYERS, WIDTH, WORDS, LENGTH, BATCH = (4, 256, 8192, 128, 8) if ON_GPU else (2, 64, 512, 32, 4)
PROMPT = LENGTH // 4
STEPS, WARM_UP = 16, 4
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Tuner(transformers.Trainer):
    """Also takes the loss of the answer, without the prompt. No backward pass goes through it:
    its graph stays whole.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen_losses: list[Any] = []

    def answer_loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        logits, wanted = outputs.logits[:, PROMPT - 1 : -1], labels[:, PROMPT:]
        return functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


class AnswerLossKeeper(Tuner):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        answer = self.answer_loss(outputs, inputs["labels"])
        self.seen_losses.append(answer)  # KEEPS ANSWER LOSS
        return (loss, outputs) if return_outputs else loss


class AnswerLossNoter(Tuner):
    """As above, repaired."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        answer = self.answer_loss(outputs, inputs["labels"])
        self.seen_losses.append(answer.detach().item())
        return (loss, outputs) if return_outputs else loss


class LossKeeper(Tuner):
    """Keeps the loss that is trained on: the backward pass frees what its graph saved, and
    little is left.
    """

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.seen_losses.append(loss)  # KEEPS LOSS
        return (loss, outputs) if return_outputs else loss


class HiddenStates(transformers.TrainerCallback):
    """Sees what each layer gives, by forward hooks."""

    def __init__(self) -> None:
        self.latest: list[torch.Tensor] = []
        self.kept_hidden: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any
    ) -> None:
        for layer in model.transformer.h:
            layer.register_forward_hook(self.seen)

    def seen(self, _layer: Any, _inputs: Any, output: Any) -> None:
        self.latest.append((output[0] if isinstance(output, tuple) else output).detach())


class HiddenKeeper(HiddenStates):
    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.kept_hidden.append(self.latest)  # KEEPS HIDDEN
        self.latest = []


class LastHidden(HiddenStates):
    """As above, repaired."""

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.kept_hidden = [self.latest]
        self.latest = []


class Witness(transformers.TrainerCallback):
    """Notes how many bytes are allocated when a step ends, the truth; and how many of them were
    asked for.
    """

    def __init__(self) -> None:
        self.allocated: list[int] = []
        self.requested: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if ON_GPU:
            self.allocated.append(torch.cuda.memory_allocated())
            self.requested.append(torch.cuda.memory_stats()["requested_bytes.all.current"])


def usual_growth(sizes: list[int]) -> int | None:
    """What a step adds, after warm-up; None where nothing counted."""
    return (
        int(statistics.median(b - a for a, b in itertools.pairwise(sizes[WARM_UP:])))
        if sizes
        else None
    )


JOBS: dict[str, tuple[type[Tuner], type[HiddenStates]]] = {
    "losses": (AnswerLossKeeper, LastHidden),
    "hidden": (AnswerLossNoter, HiddenKeeper),
    "both": (AnswerLossKeeper, HiddenKeeper),
    "both_in_main": (AnswerLossKeeper, HiddenKeeper),
    "trained": (LossKeeper, LastHidden),
    "fixed": (AnswerLossNoter, LastHidden),
    "losses_rank1": (AnswerLossKeeper if RANK == 1 else AnswerLossNoter, LastHidden),
}


def build(job: str, witness: Witness, folder: Path) -> Tuner:
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=LAYERS,
            n_embd=WIDTH,
            n_head=4,
            vocab_size=WORDS,
            n_positions=LENGTH,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        bf16=ON_GPU,
        use_cpu=not ON_GPU,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        ddp_backend=("nccl" if ON_GPU else "gloo") if WORLD > 1 else None,
        ddp_find_unused_parameters=False,
    )
    ids = torch.randint(0, WORDS, (BATCH * STEPS * WORLD, LENGTH))
    tuner, hidden = JOBS[job]
    return tuner(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[hidden(), witness],
    )


def kept_without_a_gpu() -> dict[str, int]:
    """What the statements keep each step where no allocator counts: by the tensors' shapes."""
    words = BATCH * (LENGTH - PROMPT)
    return {
        # log-probabilities, the wanted words, the loss and its weight
        "answer loss": 4 * words * WORDS + 8 * words + 4 + 4,
        "hidden": LAYERS * 4 * BATCH * LENGTH * WIDTH,
        "loss": 4,
    }


def keeping_lines() -> dict[str, int]:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marks = {f"# KEEPS {name.upper()}": name for name in kept_without_a_gpu()}
    return {
        name: number
        for number, line in enumerate(lines, 1)
        for mark, name in marks.items()
        if line.endswith(mark)
    }


def write_truth(job: str, witness: Witness, folder: Path) -> None:
    truth = {
        "gpu": torch.cuda.get_device_name() if ON_GPU else None,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "allocated": witness.allocated,
        "bytes_per_step": usual_growth(witness.allocated),
        "requested_per_step": usual_growth(witness.requested),
        "kept": kept_without_a_gpu(),
        "lines": keeping_lines(),
    }
    (folder / f"{job}.rank{RANK}.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")


def main(job: str, folder: Path) -> None:
    """As most scripts have it: what it made is gone when it returns."""
    witness = Witness()
    trainer = build(job, witness, folder)
    trainer.train()
    write_truth(job, witness, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", choices=JOBS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.job.endswith("in_main"):
        main(options.job, options.out)
    else:
        witness = Witness()
        trainer = build(options.job, witness, options.out)
        trainer.train()
        write_truth(options.job, witness, options.out)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
