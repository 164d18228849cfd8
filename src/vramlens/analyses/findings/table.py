"""The table of findings: one row a finding, in the order in which they are looked for.

Those of what optimizers have and keep are in ``optimizer_rows``.
"""

from __future__ import annotations

from typing import Any

from vramlens.analyses.findings.buffers import operator_buffers
from vramlens.analyses.findings.copies import loaded_copies
from vramlens.analyses.findings.eval_with_grad import eval_with_grad
from vramlens.analyses.findings.failure_remedies import (
    allocator_retry,
    expandable_segments,
    fragmented_request,
    process_limit,
    unconsumed_forward,
)
from vramlens.analyses.findings.faults.double_precision import double_precision
from vramlens.analyses.findings.faults.expressions.broadcast_rows import broadcast_rows
from vramlens.analyses.findings.faults.expressions.contraction_order import contraction_order
from vramlens.analyses.findings.faults.expressions.costly_expression import costly_expression
from vramlens.analyses.findings.faults.expressions.picked_after import picked_after
from vramlens.analyses.findings.faults.expressions.repeated_rows import repeated_rows
from vramlens.analyses.findings.faults.expressions.written_out_view import written_out_view
from vramlens.analyses.findings.faults.graphs.abandoned_pass import abandoned_pass
from vramlens.analyses.findings.faults.graphs.dequantized_weights import dequantized_weights
from vramlens.analyses.findings.faults.graphs.gradient_cycles import gradient_cycles
from vramlens.analyses.findings.faults.graphs.graphs_of_results import graphs_of_results
from vramlens.analyses.findings.faults.graphs.losses_before_backward import losses_before_backward
from vramlens.analyses.findings.faults.graphs.one_checkpoint import one_checkpoint
from vramlens.analyses.findings.faults.graphs.parametrized_weight import parametrized_weight
from vramlens.analyses.findings.faults.graphs.repeated_turns import repeated_turns
from vramlens.analyses.findings.faults.graphs.retained_graph import retained_graph
from vramlens.analyses.findings.faults.graphs.rollout_graphs import rollout_graphs
from vramlens.analyses.findings.faults.graphs.saved_by_function import saved_by_function
from vramlens.analyses.findings.faults.graphs.solver_steps import solver_steps
from vramlens.analyses.findings.faults.holders.garbage import uncollected_garbage
from vramlens.analyses.findings.faults.holders.kept_by_calls import kept_by_calls
from vramlens.analyses.findings.faults.holders.kept_on_ctx import kept_on_ctx
from vramlens.analyses.findings.faults.holders.left_hooks import left_hooks
from vramlens.analyses.findings.faults.holders.linked_objects import linked_objects
from vramlens.analyses.findings.faults.holders.spent_inputs import spent_inputs
from vramlens.analyses.findings.faults.holders.waiting_objects import waiting_objects
from vramlens.analyses.findings.faults.idle_experts import idle_experts
from vramlens.analyses.findings.faults.kept.collected_outputs import collected_outputs
from vramlens.analyses.findings.faults.kept.default_argument import default_argument
from vramlens.analyses.findings.faults.kept.enlarged_by_steps import enlarged_by_steps
from vramlens.analyses.findings.faults.kept.evaluation_outputs import evaluation_outputs
from vramlens.analyses.findings.faults.kept.float_images import float_images
from vramlens.analyses.findings.faults.kept.generation_scores import generation_scores
from vramlens.analyses.findings.faults.kept.kept_caches import kept_caches
from vramlens.analyses.findings.faults.kept.kept_from_start import kept_from_start
from vramlens.analyses.findings.faults.kept.kept_in_store import kept_in_store
from vramlens.analyses.findings.faults.kept.listed_batches import listed_batches
from vramlens.analyses.findings.faults.kept.lists_of_loop import lists_of_loop
from vramlens.analyses.findings.faults.kept.repeated_heads import repeated_heads
from vramlens.analyses.findings.faults.kept.requested_outputs import requested_outputs
from vramlens.analyses.findings.faults.kept.retry_in_except import retry_in_except
from vramlens.analyses.findings.faults.kept.several_sequences import several_sequences
from vramlens.analyses.findings.faults.kept.unused_cache import unused_cache
from vramlens.analyses.findings.faults.larger_inputs import larger_inputs
from vramlens.analyses.findings.faults.lbfgs_pairs import lbfgs_history
from vramlens.analyses.findings.faults.models.casts_of_gone_models import autocast_cache
from vramlens.analyses.findings.faults.models.copied_ddp import copied_ddp
from vramlens.analyses.findings.faults.models.finished_models import finished_models
from vramlens.analyses.findings.faults.models.frozen_in_name import frozen_in_name
from vramlens.analyses.findings.faults.models.frozen_twins import frozen_twins
from vramlens.analyses.findings.faults.models.kept_checkpoint import kept_checkpoint
from vramlens.analyses.findings.faults.models.model_of_each_thread import model_of_each_thread
from vramlens.analyses.findings.faults.models.state_dicts import state_dicts
from vramlens.analyses.findings.faults.models.undivided_copy import whole_copy
from vramlens.analyses.findings.faults.models.unmatched_freeze import unmatched_freeze
from vramlens.analyses.findings.faults.nested_wrapper import nested_wrapper
from vramlens.analyses.findings.faults.optimizer_list import optimizer_list
from vramlens.analyses.findings.faults.padded_columns import padded_columns
from vramlens.analyses.findings.faults.repeated_masks import repeated_masks
from vramlens.analyses.findings.faults.requests.concatenated_copy import concatenated_copy
from vramlens.analyses.findings.faults.requests.converted_whole import converted_whole
from vramlens.analyses.findings.faults.requests.dense_embedding_gradient import (
    dense_embedding_gradient,
)
from vramlens.analyses.findings.faults.requests.joint_covariance import joint_covariance
from vramlens.analyses.findings.faults.requests.large_request import request_too_large
from vramlens.analyses.findings.faults.requests.loaded_whole import loaded_whole
from vramlens.analyses.findings.faults.requests.previous_result import previous_result
from vramlens.analyses.findings.faults.requests.rebuilt_collection import rebuilt_collection
from vramlens.analyses.findings.faults.requests.square_growth import square_growth
from vramlens.analyses.findings.faults.uneven_rows import uneven_rows
from vramlens.analyses.findings.faults.unlabeled_positions import unlabeled_positions
from vramlens.analyses.findings.faults.unstepped_parameters import unstepped_parameters
from vramlens.analyses.findings.faults.vectorized_transform import vectorized_transform
from vramlens.analyses.findings.faults.wide_weights import wide_weights
from vramlens.analyses.findings.faults.written_out import attention_written_out
from vramlens.analyses.findings.first_step import first_step_to_come
from vramlens.analyses.findings.gradients import gradients_kept
from vramlens.analyses.findings.growing_memory import gathered_outputs, growth_in_samples, leaks
from vramlens.analyses.findings.largest_line import is_about_largest_line, largest_line
from vramlens.analyses.findings.optimizer_rows import OF_OPTIMIZERS
from vramlens.analyses.findings.other_devices import other_devices
from vramlens.analyses.findings.ranking import LEAST_SHARE, FindingRow
from vramlens.analyses.findings.stranded import private_pools, stranded_streams
from vramlens.analyses.findings.unused_graph import unused_graph
from vramlens.analyses.findings.unused_reserve import unused_reserve
from vramlens.analyses.findings.usage import activations, optimizer_state
from vramlens.analyses.scene import Finder, Scene


def _fault(name: str, find: Finder, **conditions: Any) -> FindingRow[Scene]:
    """The row of a fault that an edit of a few lines mends."""
    return FindingRow(id=name, find=find, is_mended_in_code=True, **conditions)


FROM_RECORDING: tuple[FindingRow[Scene], ...] = (
    FindingRow(id="fragmented_request", find=fragmented_request, importance=6, at_any_size=True),
    FindingRow(id="process_limit", find=process_limit, importance=8, at_any_size=True),
    FindingRow(id="expandable_segments", find=expandable_segments, at_any_size=True),
    FindingRow(id="allocator_retry", find=allocator_retry, importance=5, at_any_size=True),
    _fault(
        "broadcast_rows",
        broadcast_rows,
        importance=0,
        at_any_size=True,
        takes_place_of="request_too_large",
    ),
    _fault(
        "contraction_order", contraction_order, importance=1, takes_place_of="request_too_large"
    ),
    _fault("previous_result", previous_result, saves_at_most=True),
    _fault("repeated_rows", repeated_rows, takes_place_of="costly_expression"),
    _fault("written_out_view", written_out_view, takes_place_of="request_too_large"),
    _fault("vectorized_transform", vectorized_transform, takes_place_of="request_too_large"),
    _fault(
        "picked_after",
        picked_after,
        importance=2,
        important_from_share=0.5,
        takes_place_of="costly_expression",
    ),
    _fault(
        "converted_whole",
        converted_whole,
        importance=3,
        important_from_share=0.5,
        takes_place_of="request_too_large",
    ),
    FindingRow(
        id="request_too_large",
        find=request_too_large,
        importance=4,
        at_any_size=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="leak",
        find=leaks,
        importance=7,
        important_from_share=LEAST_SHARE,
        at_any_size=True,
        grows=True,
    ),
    FindingRow(id="sampled_growth", find=growth_in_samples, at_any_size=True),
    _fault("optimizer_list", optimizer_list, saves_at_most=True),
    _fault(
        "kept_on_ctx", kept_on_ctx, saves_at_most=True, grows=True, takes_place_of="activations"
    ),
    # frozen_in_name: what is still to come of the step is saved, too
    _fault("frozen_in_name", frozen_in_name, takes_place_of="activations"),
    _fault("unmatched_freeze", unmatched_freeze, takes_place_of="activations"),
    *OF_OPTIMIZERS,
    _fault("autocast_cache", autocast_cache, saves_at_most=True, grows=True),
    _fault(
        "linked_objects",
        linked_objects,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    _fault("float_images", float_images, grows=True, takes_place_of="kept_in_store"),
    _fault(
        "listed_batches",
        listed_batches,
        saves_at_most=True,
        grows=True,
        takes_place_of="costly_expression",
    ),
    _fault(
        "default_argument",
        default_argument,
        saves_at_most=True,
        grows=True,
        takes_place_of="costly_expression",
    ),
    _fault(
        "kept_caches", kept_caches, saves_at_most=True, grows=True, takes_place_of="kept_in_store"
    ),
    _fault("lists_of_loop", lists_of_loop, takes_place_of="kept_in_store"),
    _fault("several_sequences", several_sequences, may_be_meant=True),
    _fault("square_growth", square_growth, may_be_meant=True),
    _fault("nested_wrapper", nested_wrapper),
    _fault("joint_covariance", joint_covariance, saves_at_most=True),
    _fault("costly_expression", costly_expression, saves_at_most=True),
    _fault("repeated_masks", repeated_masks),
    _fault("attention_written_out", attention_written_out),
    _fault("solver_steps", solver_steps, takes_place_of="activations"),
    _fault("graphs_of_results", graphs_of_results, grows=True, takes_place_of="unused_graph"),
    _fault("gradient_cycles", gradient_cycles, grows=True, takes_place_of="unused_graph"),
    _fault("abandoned_pass", abandoned_pass),
    _fault("saved_by_function", saved_by_function, takes_place_of="activations"),
    _fault("retained_graph", retained_graph, takes_place_of="activations"),
    _fault("dequantized_weights", dequantized_weights, takes_place_of="activations"),
    # parametrized_weight: the reads to come take no more either
    _fault("parametrized_weight", parametrized_weight, takes_place_of="activations"),
    # repeated_turns: the turns to come take no more either
    _fault("repeated_turns", repeated_turns, may_be_meant=True),
    _fault("rollout_graphs", rollout_graphs, saves_at_most=True, takes_place_of="activations"),
    _fault("one_checkpoint", one_checkpoint, takes_place_of="activations"),
    # losses_before_backward: the passes to come take no more either
    _fault("losses_before_backward", losses_before_backward, takes_place_of="activations"),
    _fault(
        "eval_with_grad",
        eval_with_grad,
        is_avoidable=True,
        takes_place_of="unused_graph",
        saves_at_most=True,
    ),
    _fault("unused_graph", unused_graph, is_avoidable=True, saves_at_most=True),
    _fault("unstepped_parameters", unstepped_parameters),
    _fault("idle_experts", idle_experts, takes_place_of="activations"),
    _fault("padded_columns", padded_columns, takes_place_of="activations"),
    _fault("uneven_rows", uneven_rows, takes_place_of="activations"),
    _fault("unlabeled_positions", unlabeled_positions, takes_place_of="activations"),
    _fault("enlarged_by_steps", enlarged_by_steps),
    _fault("larger_inputs", larger_inputs, may_be_meant=True),
    _fault("unconsumed_forward", unconsumed_forward, saves_at_most=True, may_be_meant=True),
    _fault("copied_ddp", copied_ddp, is_avoidable=True, saves_at_most=True),
    FindingRow(
        id="evaluation_outputs", find=evaluation_outputs, is_avoidable=True, saves_at_most=True
    ),
    FindingRow(
        id="collected_outputs", find=collected_outputs, is_avoidable=True, saves_at_most=True
    ),
    _fault("gathered_outputs", gathered_outputs, is_avoidable=True, saves_at_most=True),
    FindingRow(id="gradients_kept", find=gradients_kept, is_avoidable=True, saves_at_most=True),
    _fault("two_copies", loaded_copies, is_avoidable=True, saves_at_most=True),
    _fault("retry_in_except", retry_in_except, saves_at_most=True),
    _fault(
        "spent_inputs", spent_inputs, takes_place_of="kept_in_store", saves_at_most=True, grows=True
    ),
    _fault("left_hooks", left_hooks, saves_at_most=True, grows=True),
    _fault("uncollected_garbage", uncollected_garbage, saves_at_most=True, grows=True),
    _fault("finished_models", finished_models, saves_at_most=True, grows=True),
    _fault("whole_copy", whole_copy, is_avoidable=True, saves_at_most=True),
    _fault("frozen_twins", frozen_twins, saves_at_most=True),
    _fault("unused_cache", unused_cache),
    _fault("concatenated_copy", concatenated_copy, saves_at_most=True),
    _fault("kept_from_start", kept_from_start, takes_place_of="largest_line", saves_at_most=True),
    _fault("loaded_whole", loaded_whole, saves_at_most=True, takes_place_of="kept_in_store"),
    _fault(
        "state_dicts", state_dicts, saves_at_most=True, grows=True, takes_place_of="kept_in_store"
    ),
    # requested_outputs: those of the layers to come are saved, too
    _fault("requested_outputs", requested_outputs, takes_place_of="kept_in_store"),
    _fault(
        "waiting_objects",
        waiting_objects,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    # model_of_each_thread: the models to come are saved, too
    _fault("model_of_each_thread", model_of_each_thread),
    _fault("kept_checkpoint", kept_checkpoint, saves_at_most=True, takes_place_of="kept_in_store"),
    _fault("repeated_heads", repeated_heads, saves_at_most=True, takes_place_of="kept_in_store"),
    _fault("kept_in_store", kept_in_store, saves_at_most=True, grows=True),
    _fault("generation_scores", generation_scores, saves_at_most=True, grows=True),
    _fault("kept_by_calls", kept_by_calls, saves_at_most=True, grows=True),
    _fault("dense_embedding_gradient", dense_embedding_gradient, saves_at_most=True),
    _fault("rebuilt_collection", rebuilt_collection, saves_at_most=True),
    # lbfgs_history: the pairs to come are saved, too
    _fault("lbfgs_history", lbfgs_history, takes_place_of="optimizer_state"),
    _fault("double_precision", double_precision),
    _fault("wide_weights", wide_weights, saves_at_most=True),
    FindingRow(id="first_optimizer_step", find=first_step_to_come),
    FindingRow(id="operator_buffers", find=operator_buffers, saves_at_most=True),
    FindingRow(id="stranded_streams", find=stranded_streams),
    FindingRow(id="private_pools", find=private_pools),
    FindingRow(id="unused_reserve", find=unused_reserve),
    FindingRow(id="other_device", find=other_devices, at_any_size=True),
    FindingRow(id="activations", find=activations),
    FindingRow(id="optimizer_state", find=optimizer_state, saves_at_most=True),
    FindingRow(
        id="largest_line", find=largest_line, at_any_size=True, unless=is_about_largest_line
    ),
)
"""What a recording shows. A row that takes another's place stands before that, and one with
``unless`` after all that may say the same.
"""

_ONLY_FROM_TEXT: tuple[FindingRow[Scene], ...] = (
    FindingRow(id="other_process", importance=9),
    FindingRow(id="device_full", importance=10),
)
"""What only an error's text calls for, and that is more than its bytes."""

ROWS = {row.id: row for row in (*FROM_RECORDING, *_ONLY_FROM_TEXT)}
HOLES_FIRST = {
    **ROWS,
    "expandable_segments": FindingRow[Scene](id="expandable_segments", importance=-1),
}
"""The rows where an error's text shows holes: the setting that may use them then comes first."""
