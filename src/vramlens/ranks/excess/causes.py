"""Causes: why a line holds more on one rank than on its peers, and what to do about each cause."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import format_size

STAY = ("parameters", "optimizer_state", "gradients")
_LEAKING_STEPS = 3
SAME_SHARE = 0.02
"""Sizes and counts that differ by less are the same."""
_LARGER_TABLE = 0.25
"""Parameters that are larger by more than this are not a shard that was rounded up."""
_FAR_MORE = 1.25
"""Times the bytes or allocations of peers, where each is as large: no rounding of shards does
that.
"""
_CAUSES_OF_HINTS = {
    Hint.LOAD: "map_location",
    Hint.OBJECTS: "object_collective",
    Hint.DATA_PARALLEL: "data_parallel",
    Hint.STATE_DICT: "full_state_dict",
    Hint.GATHER: "rank0_gather",  # not where FSDP gathers parameters for every layer
}
"""What a call alone gives away, the first that is there."""
_HINTS_OF_WHAT_STAYS = (Hint.LOAD, Hint.STATE_DICT)
BESIDE_TRAINING = Hint.EVALUATION | Hint.LOGGING
_FIXED_ELSEWHERE = (
    "separate_gradients",
    "uneven_batch",
    "wider_numbers",
    "workspaces",
    "not_checkpointed",
    "not_frozen",
    "more_states",
    "not_resharded",
    "wider_parameters",
    "nccl",
    "allocator",
    "allocator_settings",
)
"""Causes that no edit of the line mends."""

BY_STEP = (
    "uneven_batch",
    "larger_part",
    "wider_numbers",
    "workspaces",
    "not_checkpointed",
    "moe_hot_rank",
    "pipeline_stage",
    "uneven_shard",
    "embedding_shard",
    "larger_tensors",
    "unknown",
)
"""Causes that show in the peaks of steps."""
CERTAIN_CAUSES = (
    "map_location",
    "object_collective",
    "data_parallel",
    "full_state_dict",
    "rank0_gather",
)
"""Causes that one call gives away."""
NOT_FROZEN, LARGER_PART = "not_frozen", "larger_part"
MORE_STATES, NOT_RESHARDED = "more_states", "not_resharded"
WIDER_PARAMETERS, WHOLE_COPY = "wider_parameters", "whole_copy"
AVOIDABLE = "avoidable"
OF_WIDTH = (
    "wider_numbers",
    "larger_part",
    "larger_tensors",
    "embedding_shard",
    "uneven_batch",
    "uneven_shard",
    "pipeline_stage",
    "first_last_stage",
    "overlap",
    "unknown",
)
"""Causes that follow from wider parameters, where these are told."""
OF_ALL_LINES = ("separate_gradients",)
"""Causes of which no line is to blame: all of a model's have a part in them."""
POSSIBLE = ("unknown", "workspaces", "larger_part")
"""Causes that stay possible."""

FIXES = {
    "stray_context": "call torch.cuda.set_device(local_rank) before the first CUDA call, and "
    "pass the device where tensors are created",
    "map_location": 'load with torch.load(file, map_location="cpu"), or to the device of this rank',
    "object_collective": "gather numbers as tensors, or objects over a gloo group: the objects"
    " are pickled into GPU memory",
    "full_state_dict": "save sharded (torch.distributed.checkpoint), or gather the full state to"
    " the CPU: StateDictOptions(full_state_dict=True, cpu_offload=True)",
    "rank0_gather": "keep a number or .cpu() of what is gathered, delete the list after use, "
    "or reduce instead of gathering",
    "leak": "delete, detach or move to the CPU what this line leaves behind after each step",
    "separate_gradients": "build DistributedDataParallel with gradient_as_bucket_view=True on all"
    " ranks: gradients are views of its buckets then",
    "uneven_batch": "give the ranks batches of the same cost: DataLoader(batch_sampler="
    "vramlens.BalancedBatchSampler(lengths, batch_size)), or equal batch sizes and drop_last=True;"
    " if the ranks share one input, give each an equal part",
    "larger_part": "divide what these lines build evenly among the ranks, if the parts are meant to be"
    " equal",
    "wider_numbers": "run its forward pass under the torch.autocast of its peers, in the same dtype; "
    "if its batch is twice as large instead, level the batches",
    "workspaces": "set the same torch.backends.cudnn.benchmark on all ranks, or False: a trial may "
    "choose another algorithm on each",
    "not_checkpointed": "checkpoint the same layers on all ranks (torch.utils.checkpoint,"
    " gradient_checkpointing), or on none",
    "not_frozen": "call requires_grad_(False) on these modules on all ranks, outside of any branch"
    " that only some take; if they are to be trained, train them on all",
    "more_states": "build the same optimizer, with the same options, on all ranks: Adam keeps two"
    " states for each parameter, amsgrad a third, SGD one with momentum and none without",
    "not_resharded": "give fully_shard the same reshard_after_forward on all ranks (of"
    " FullyShardedDataParallel, the same sharding_strategy)",
    "wider_parameters": "convert this rank's part of the model to the dtype that the others use, such as"
    " model.to(torch.bfloat16)",
    "whole_copy": "keep on each rank a copy of its own shards only (parameter.to_local()), or keep the whole"
    " copy on the CPU",
    "data_parallel": "use DistributedDataParallel (one process per GPU): DataParallel gathers"
    " outputs on its first GPU",
    "moe_hot_rank": "balance the router (an auxiliary loss, a capacity factor), or place the "
    "busy experts on different ranks",
    "pipeline_stage": "move layers from this stage to stages with free memory, or use fewer "
    "microbatches in flight",
    "first_last_stage": "give this stage fewer layers: it also holds the embedding or the head"
    " and its logits",
    "embedding_shard": "shard the embedding tables by rows or columns, so that each rank holds"
    " an equal part",
    "larger_tensors": "build equal tensors on all ranks: divide what these lines build by the number"
    " of ranks; if they share a sequence with a causal mask, give each one part from its beginning"
    " and one from its end",
    "uneven_shard": "pad the first dimension to a multiple of the number of ranks; the first "
    "ranks hold the remainder",
    "nccl": "use fewer process groups on this rank, or lower NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS",
    "allocator": "set expandable_segments:True on all ranks, and compare vramlens tune of this"
    " rank's recording",
    "allocator_settings": "give all ranks the same allocator settings",
    "other_process": "stop the other process on this GPU, or keep it away with "
    "CUDA_VISIBLE_DEVICES",
    "overlap": "free these tensors before the next ones are created, as the other ranks do "
    "(compare them with vramlens diff)",
    "rank_only": "do this on the CPU, free it before the next step, or give the work to a rank "
    "with free memory",
    "unknown": "record this rank from its start (vramlens run) to see the line",
}
"""What to do, by cause; the keys are the slugs of the contract, listed in docs/ranks.md."""

WORDS = {
    "stray_context": "uses memory on another rank's GPU",
    "map_location": "loads a checkpoint to the GPU from which it was saved",
    "object_collective": "gathers Python objects through GPU memory",
    "full_state_dict": "gathers the full state of the model",
    "rank0_gather": "keeps what it gathers from the other ranks",
    "leak": "leaks: memory grows with every step, only on this rank",
    "separate_gradients": "stores its gradients a second time, beside DDP's buckets",
    "uneven_batch": "has larger batches or longer sequences",
    "larger_part": "holds a larger part of the model, or of the data that it keeps",
    "wider_numbers": "holds numbers of twice the width: its peers use autocast",
    "workspaces": "requests larger buffers for a short time, maybe for another algorithm of a library",
    "not_checkpointed": "keeps activations that its peers compute again in the backward pass",
    "not_frozen": "trains parameters that its peers keep frozen",
    "more_states": "keeps more optimizer state for as many parameters",
    "not_resharded": "keeps parameters gathered that its peers shard again after the forward pass",
    "wider_parameters": "has parameters twice as wide as its peers'",
    "whole_copy": "keeps a copy of all weights, of which each rank has a part",
    AVOIDABLE: "holds memory that one edit frees",
    "data_parallel": "gathers the outputs of DataParallel's other GPUs",
    "moe_hot_rank": "has experts that get more tokens",
    "pipeline_stage": "holds more layers or microbatches of the pipeline",
    "first_last_stage": "also holds the embedding or the head of the pipeline",
    "embedding_shard": "holds larger embedding tables",
    "larger_tensors": "builds larger tensors from the same lines",
    "uneven_shard": "holds the larger shards",
    "nccl": "has more memory in NCCL's communicators",
    "allocator": "has more reserved but unused memory: its requests, or their order, are different",
    "allocator_settings": "has other allocator settings, and more reserved but unused memory",
    "other_process": "shares its GPU with another process",
    "overlap": "uses at one moment what its peers use one after the other",
    "rank_only": "does something that no other rank does",
    "unknown": "uses memory that the recording does not explain",
}


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a rank, as far as that says why it differs.

    Attributes:
        first, last: whether it is the first or the last of all ranks.
        world: how many ranks the job has.
        sends: whether the ranks talk point to point or divide a model, as pipelines do.
        unlike: whether its peers may do other work than it does: nothing says who does the same.
        gathers: functions (file and name) that call a gather, from flight records.
        is_stage: whether it is compared with stages of a pipeline that are known to be others.
        steps: how many steps it recorded.
    """

    first: bool
    last: bool
    world: int
    sends: bool
    unlike: bool
    gathers: frozenset[tuple[str, str]]
    is_stage: bool = False
    steps: int = 0


def cause_of(own: LineUse, peer: LineUse | None, position: Position) -> str:
    """The slug of why a line holds more on this rank than on its peers.

    Args:
        own: the line on this rank.
        peer: the same line on a typical peer; None where its peers do not have it.
        position: where the rank stands.
    """
    named = _cause_of_calls(own, peer, position)
    if named is not None:
        return named
    if own.place is None and own.phase == "unknown":
        return "unknown"
    if peer is None or not peer.peak_bytes:
        return _cause_of_lone_line(own, position)
    if is_built_once(own):
        return _cause_of_what_stays(own, peer, position)
    return _cause_of_what_moves(own, peer, position)


def _cause_of_what_moves(own: LineUse, peer: LineUse, position: Position) -> str:
    """The cause of activations and the like that are larger, or more."""
    larger, more_often = own.times_as_large(peer) - 1, share_more_often(own, peer)
    if larger > SAME_SHARE and larger >= more_often:
        return "uneven_batch"
    if position.sends or more_often > SAME_SHARE:
        return "pipeline_stage"
    return "unknown"


def share_more_often(own: LineUse, peer: LineUse) -> float:
    """The share by which a line allocates more often: in a step, for ranks may have recorded more
    or fewer of them.
    """
    if own.per_step and peer.per_step:
        return own.per_step / peer.per_step - 1
    return own.allocations / max(1, peer.allocations) - 1


def _cause_of_what_stays(own: LineUse, peer: LineUse, position: Position) -> str:
    """The cause of parameters and the like that are larger, or more."""
    if _has_other_layers(own, peer, position) or abs(share_more_often(own, peer)) > SAME_SHARE:
        return "pipeline_stage"
    larger = own.times_as_large(peer) - 1
    is_far_more = own.peak_bytes > _FAR_MORE * peer.peak_bytes
    if is_far_more and abs(larger) <= SAME_SHARE:
        more_in_all = own.allocations / max(1, peer.allocations) - 1
        if abs(more_in_all) <= SAME_SHARE:
            return "overlap"  # as many of the same size, and more of them at once
        if more_in_all > _FAR_MORE - 1:
            return "pipeline_stage"
    is_embedding = larger > _LARGER_TABLE or bool(own.hints & Hint.EMBEDDING)
    return "embedding_shard" if is_embedding else "uneven_shard"


def _has_other_layers(own: LineUse, peer: LineUse, position: Position) -> bool:
    has_more = own.category == "parameters" and own.allocations != peer.allocations
    return has_more or (position.sends and position.unlike)


def _cause_of_calls(own: LineUse, peer: LineUse | None, position: Position) -> str | None:
    """The cause that the functions called give away."""
    cause = _cause_of_hints(own)
    are_loading = peer is not None and peer.peak_bytes > 0  # each to its own GPU
    if cause is not None and not (cause == "map_location" and are_loading):
        return cause
    if peer is None:
        return "rank0_gather" if _calls_gather(own, position) else None
    if own.category in STAY:
        return None
    if own.hints & Hint.EXPERTS:
        return "moe_hot_rank"
    # Others evaluate, too: what the first rank holds more is what it got from them.
    if own.hints & Hint.EVALUATION and position.first:
        return "rank0_gather"
    return None


def _cause_of_hints(own: LineUse) -> str | None:
    """The cause that one call alone gives away."""
    stays = own.category in STAY
    for hint, cause in _CAUSES_OF_HINTS.items():
        is_unsharded = hint is not Hint.GATHER or not own.hints & Hint.SHARDED
        if own.hints & hint and is_unsharded and (not stays or hint in _HINTS_OF_WHAT_STAYS):
            return cause
    return None


def _calls_gather(own: LineUse, position: Position) -> bool:
    return own.place is not None and (own.place.file, own.place.function) in position.gathers


def _cause_of_lone_line(own: LineUse, position: Position) -> str:
    """The cause of a line that no peer has."""
    of_stage = _cause_of_stage(own, position)
    if of_stage is not None:
        return of_stage
    # A stage makes one equal tensor for every microbatch, which may be as many as there are ranks.
    may_be_gathered = not position.is_stage or outlives_steps(own)
    if position.first and may_be_gathered and _looks_gathered(own, position):
        return "rank0_gather"
    return "leak" if only_grows(own) else "rank_only"


def _cause_of_stage(own: LineUse, position: Position) -> str | None:
    """The cause of what only the first or the last stage of a model has."""
    is_at_end = position.sends and (position.first or position.last)
    is_of_head = position.last and own.phase == "forward" and not own.hints & BESIDE_TRAINING
    if position.last and own.hints & Hint.LOSS and not position.first:
        return "first_last_stage"
    if own.hints & Hint.EMBEDDING:
        return "first_last_stage" if is_at_end else "embedding_shard"
    return "first_last_stage" if is_at_end and (own.static or is_of_head) else None


def is_built_once(own: LineUse) -> bool:
    """True if a line makes what stays: parameters and the like."""
    return own.category in STAY or own.static


def are_owned_experts(own: LineUse) -> bool:
    """True if a line makes parameters or states of experts: who owns how many is placement."""
    return bool(own.hints & Hint.EXPERTS) and own.category in STAY


def may_be_table(own: LineUse) -> bool:
    """True if a line makes a table itself: what follows from one, such as the state of an
    optimizer or the buckets of DDP, follows from other parameters as well.
    """
    is_own = own.category == "parameters" and not own.hints & Hint.DDP
    return bool(own.hints & Hint.EMBEDDING) or is_own


def is_of_users(own: LineUse) -> bool:
    """True if a line builds, before the first step, what is no parameter and follows from none: a
    table or a buffer of the program's own.
    """
    return own.static and own.category == "other" and own.place is not None


def only_grows(own: LineUse) -> bool:
    """True if every step adds to a line, and nothing of it ever went."""
    return (
        own.per_step > 0
        and own.peak_bytes == own.total_bytes
        and own.allocations >= _LEAKING_STEPS * own.per_step
    )


def _looks_gathered(own: LineUse, position: Position) -> bool:
    """True if each step makes one equal tensor for every rank, or some steps do and they stay: the
    list that a gather fills.
    """
    world = position.world
    is_one_a_rank = own.per_step % world == own.allocations % world == 0
    if world == 2 and own.per_step != world:
        return False  # every even number is a multiple of it
    steps = max(2, 0 if outlives_steps(own) else position.steps - 1)  # the last may be cut short
    is_each_step = 0 < steps * own.per_step <= own.allocations
    return world > 1 and own.sizes == 1 and not own.static and is_one_a_rank and is_each_step


def outlives_steps(own: LineUse) -> bool:
    """True if more of a line was alive at once than a step makes."""
    return own.peak_bytes > own.per_step * own.mean_bytes


def fix_of(cause: str, place: object | None, excess_bytes: int) -> str:
    """The fix of a cause, at a line, with the bytes to expect."""
    is_of_line = place is not None and cause not in _FIXED_ELSEWHERE
    where = f" ({place})" if is_of_line else ""
    return f"{FIXES[cause]}{where}; about {format_size(excess_bytes)}"
