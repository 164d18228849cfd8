"""Hints: what the functions in a stack say of why memory is there, such as ``torch.load`` or a
gather of objects.
"""

from __future__ import annotations

import re
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import Stacks


class Hint(IntFlag):
    """The calls that a stack went through."""

    NONE = 0
    LOAD = 1
    OBJECTS = 2
    STATE_DICT = 4
    GATHER = 8
    DATA_PARALLEL = 16
    EXPERTS = 32
    EMBEDDING = 64
    POINT_TO_POINT = 128
    DDP = 256
    SHARDED = 512
    PIN_MEMORY = 1024
    EVALUATION = 2048
    LOSS = 4096
    LOGGING = 8192
    FULLY_SHARDED = 16384
    REPLICATED = 32768


# Each is looked for in "file:function" of every frame. Names are those of PyTorch 2.4 to 2.13 and
# of the libraries that people train with (accelerate, transformers, Lightning, Megatron, torchrec).
_PATTERNS = {
    hint: re.compile(pattern)
    for hint, pattern in {
        Hint.LOAD: r"torch[/\\]serialization\.py:|safetensors[/\\]torch\.py:|:load_checkpoint$"
        r"|:_load_from_checkpoint$",
        Hint.OBJECTS: r"distributed_c10d\.py:"
        r"(?:_object_to_tensor|_tensor_to_object|\w*_object(?:_list)?)$"
        r"|:(?:all_gather_object|gather_object|broadcast_object_list|scatter_object_list)$",
        Hint.STATE_DICT: r"torch[/\\]distributed[/\\]"
        r"(?:fsdp[/\\](?:_state_dict_utils|_unshard_param_utils)|checkpoint[/\\]|_state_dict_utils)"
        r"|:(?:\w*full_state_dict\w*|get_(?:model_|optimizer_)?state_dict|\w*gather_state_dict\w*"
        r"|\w*consolidated\w*state_dict|save_16bit_model|summon_full_params|save_(?:checkpoint|model|pretrained|state)\w*|_save_checkpoint)$",
        Hint.GATHER: r"distributed_c10d\.py:(?:gather|all_gather\w*|_all_gather_base|reduce)$"
        r"|:(?:\w*nested_gather|gather_for_metrics|nested_concat|\w*pad_across_processes"
        r"|gather\w*|\w+_gather)$",
        Hint.DATA_PARALLEL: r"torch[/\\]nn[/\\]parallel[/\\]"
        r"(?:data_parallel|scatter_gather|parallel_apply|replicate|comm|_functions)\.py",
        Hint.EXPERTS: r"(?i)(?:^|[/\\_.:])"
        r"(?:moe|experts?|router?|token_dispatcher|dispatch(?:er)?)(?:[/\\_.:\d]|$)"
        r"|:(?:\w*_)?(?:moe|experts?|dispatch|combine|permute|unpermute|all_to_all\w*)(?:_\w*)?$",
        Hint.EMBEDDING: r"torch[/\\]nn[/\\]modules[/\\]sparse\.py|torchrec[/\\]"
        r"|(?i::\w*embedding\w*$)",
        Hint.POINT_TO_POINT: r"distributed_c10d\.py:(?:i?send|i?recv|batch_isend_irecv)$"
        r"|torch[/\\]distributed[/\\]pipelining|(?i:pipeline_parallel|[/\\]schedules\.py"
        r"|p2p_communication)",
        Hint.DDP: r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py",
        Hint.SHARDED: r"torch[/\\]distributed[/\\](?:fsdp|_composable|tensor|_tensor)[/\\]"
        r"|[/\\]deepspeed[/\\]runtime[/\\]zero",
        Hint.FULLY_SHARDED: r"torch[/\\]distributed[/\\](?:fsdp|_composable[/\\]fsdp)[/\\]",
        Hint.REPLICATED: r"torch[/\\]distributed[/\\]_composable[/\\]replicate_with_fsdp",
        Hint.PIN_MEMORY: r"torch[/\\]utils[/\\]data[/\\]_utils[/\\]pin_memory\.py|:pin_memory$",
        Hint.EVALUATION: r":(?:evaluate|evaluation_loop|validate|validation\w*|eval_\w+"
        r"|test_epoch\w*|predict\w*"
        r"|prediction_\w+|compute_metrics)$|torchmetrics[/\\]",
        Hint.LOSS: r"torch[/\\]nn[/\\]modules[/\\]loss\.py|(?i:(?:cross_entropy|nll_loss)\w*(?:\.py:|$))"
        r"|(?i::\w*(?:lm_head|logits|output_layer|lm_loss)\w*$)",
        Hint.LOGGING: r"(?i:tensorboard|wandb|mlflow)|:(?:log_\w+|\w*_ema|update_ema|ema_\w+)$"
        r"|:(?:visuali[sz]e\w*|sample_images)$|(?i:[/\\]ema\.py)|swa_utils\.py",
    }.items()
}

_SENT_AS_FILE = re.compile(r"torch[/\\]distributed[/\\]optim[/\\]")
"""Sends states to another rank as the bytes of a file, and loads them there."""

RECOMPUTING = re.compile(
    r"checkpoint\w*\.py:(?:recompute_\w+|unpack_hook|backward)$|tensor_parallel[/\\]random\.py:backward$"
)
"""Backward passes that compute again what was not kept: those of torch.utils.checkpoint (its two
ways), DeepSpeed's and Megatron's.
"""


def hints_of(stacks: Stacks) -> NDArray[np.int64]:
    """One Hint a stack, from what its user line called (and that line's own function).

    What called the user line says nothing: all of a model runs inside of DistributedDataParallel.
    """
    hints = np.zeros(len(stacks), np.int64)
    if not len(stacks):
        return hints
    user_frames = np.flatnonzero(stacks.user_frames[stacks.frames])
    stack = np.searchsorted(stacks.starts, user_frames, side="right") - 1
    reach = stacks.starts[1:].copy()  # a stack without a user line is a library's altogether
    # Of several assignments to one stack, the last stays: the innermost.
    reach[stack[::-1]] = user_frames[::-1] + 1
    for hint, pattern in _PATTERNS.items():
        hints[_stacks_with(stacks, pattern, reach)] |= int(hint)
    hints[_stacks_with(stacks, _SENT_AS_FILE, reach)] &= ~int(Hint.LOAD)
    return hints


def _stacks_with(
    stacks: Stacks, pattern: re.Pattern[str], reach: NDArray[np.integer]
) -> NDArray[np.integer]:
    """The stacks that have such a frame before the end of what their user line called."""
    matches = np.flatnonzero(stacks.mark_frames(pattern)[stacks.frames])
    stack = np.searchsorted(stacks.starts, matches, side="right") - 1
    return stack[matches < reach[stack]]
