"""How much work a command asks for: its options of batch, length, resolution and steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

_NAMES = frozenset(
    {
        "b",
        "bs",
        "bsz",
        "batch",
        "batchsize",
        "batch_size",
        "train_batch_size",
        "eval_batch_size",
        "per_device_batch_size",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "per_gpu_batch_size",
        "per_gpu_train_batch_size",
        "per_gpu_eval_batch_size",
        "mbs",
        "micro_batch",
        "micro_batch_size",
        "train_micro_batch_size_per_gpu",
        "gbs",
        "global_batch_size",
        "seq",
        "seqlen",
        "seq_len",
        "seq_length",
        "sequence_length",
        "max_seq_len",
        "max_seq_length",
        "max_sequence_length",
        "length",
        "max_len",
        "max_length",
        "model_max_length",
        "block_size",
        "context_length",
        "context_size",
        "tokens",
        "num_tokens",
        "max_tokens",
        "max_new_tokens",
        "max_num_batched_tokens",
        "resolution",
        "image_size",
        "img_size",
        "imgsz",
        "input_size",
        "crop_size",
        "num_frames",
        "steps",
        "num_steps",
        "max_steps",
        "train_steps",
        "max_train_steps",
        "epochs",
        "num_epochs",
        "max_epochs",
        "num_train_epochs",
    }
)
"""Names that training scripts, Hugging Face, Lightning, DeepSpeed, Megatron and timm give them.
Others contain the same words and ask for no more work: ``logging_steps``, ``save-steps``.
"""


def work_sizes(command: Sequence[str]) -> Mapping[str, str]:
    """The sizes of the work by the option's name: ``{"batch_size": "8"}``.

    ``--batch-size 8``, ``--batch_size=8`` and ``train.batch_size=8`` are the same.
    """
    return {name: value for name, value in _options(command) if name in _NAMES and _is_size(value)}


def _options(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each option's plain name and its value."""
    for word, following in pairwise((*command, "-")):
        option, sign, value = word.partition("=")
        if sign:
            yield _plain(option), value
        elif word.startswith("-b") and word[2:].isdigit():
            yield "b", word[2:]
        elif word.startswith("-") and (not following.startswith("-") or _is_size(following)):
            yield _plain(option), following


def _plain(option: str) -> str:
    """An option's name without its dashes and the group that it is in."""
    return option.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()


def _is_size(value: str) -> bool:
    """True for ``8``, ``-1`` and ``224,224``; not for a name or the next option."""
    return value.removeprefix("-")[:1].isdigit()
