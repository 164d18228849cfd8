"""The table of findings: one row a finding, in the order in which they are looked for.

Those of what optimizers have and keep are in ``optimizer_rows``.
"""

from __future__ import annotations

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
from vramlens.analyses.findings.faults.graphs.graphs_of_results import graphs_of_results
from vramlens.analyses.findings.faults.graphs.losses_before_backward import losses_before_backward
from vramlens.analyses.findings.faults.graphs.one_checkpoint import one_checkpoint
from vramlens.analyses.findings.faults.graphs.parametrized_weight import parametrized_weight
from vramlens.analyses.findings.faults.graphs.repeated_turns import repeated_turns
from vramlens.analyses.findings.faults.graphs.retained_graph import retained_graph
from vramlens.analyses.findings.faults.graphs.rollout_graphs import rollout_graphs
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
from vramlens.analyses.findings.faults.kept.evaluation_outputs import evaluation_outputs
from vramlens.analyses.findings.faults.kept.generation_scores import generation_scores
from vramlens.analyses.findings.faults.kept.kept_caches import kept_caches
from vramlens.analyses.findings.faults.kept.kept_from_start import kept_from_start
from vramlens.analyses.findings.faults.kept.kept_in_store import kept_in_store
from vramlens.analyses.findings.faults.kept.listed_batches import listed_batches
from vramlens.analyses.findings.faults.kept.repeated_heads import repeated_heads
from vramlens.analyses.findings.faults.kept.requested_outputs import requested_outputs
from vramlens.analyses.findings.faults.kept.retry_in_except import retry_in_except
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
from vramlens.analyses.findings.faults.requests.rebuilt_collection import rebuilt_collection
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
from vramlens.analyses.scene import Scene

FROM_RECORDING: tuple[FindingRow[Scene], ...] = (
    FindingRow(id="fragmented_request", find=fragmented_request, importance=6, at_any_size=True),
    FindingRow(id="process_limit", find=process_limit, importance=8, at_any_size=True),
    FindingRow(id="expandable_segments", find=expandable_segments, at_any_size=True),
    FindingRow(id="allocator_retry", find=allocator_retry, importance=5, at_any_size=True),
    FindingRow(
        id="broadcast_rows",
        find=broadcast_rows,
        importance=0,
        at_any_size=True,
        is_mended_in_code=True,
        takes_place_of="request_too_large",
    ),
    FindingRow(
        id="contraction_order",
        find=contraction_order,
        importance=1,
        is_mended_in_code=True,
        takes_place_of="request_too_large",
    ),
    FindingRow(
        id="repeated_rows",
        find=repeated_rows,
        is_mended_in_code=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="written_out_view",
        find=written_out_view,
        is_mended_in_code=True,
        takes_place_of="request_too_large",
    ),
    FindingRow(
        id="vectorized_transform",
        find=vectorized_transform,
        is_mended_in_code=True,
        takes_place_of="request_too_large",
    ),
    FindingRow(
        id="picked_after",
        find=picked_after,
        importance=2,
        important_from_share=0.5,
        is_mended_in_code=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="converted_whole",
        find=converted_whole,
        importance=3,
        important_from_share=0.5,
        is_mended_in_code=True,
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
    FindingRow(
        id="optimizer_list", find=optimizer_list, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(
        id="kept_on_ctx",
        find=kept_on_ctx,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="activations",
    ),
    FindingRow(
        id="frozen_in_name",
        find=frozen_in_name,
        is_mended_in_code=True,  # what is still to come of the step is saved, too
        takes_place_of="activations",
    ),
    *OF_OPTIMIZERS,
    FindingRow(
        id="autocast_cache",
        find=autocast_cache,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="linked_objects",
        find=linked_objects,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="listed_batches",
        find=listed_batches,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="default_argument",
        find=default_argument,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="costly_expression",
    ),
    FindingRow(
        id="kept_caches",
        find=kept_caches,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="joint_covariance", find=joint_covariance, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(
        id="costly_expression", find=costly_expression, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(id="repeated_masks", find=repeated_masks, is_mended_in_code=True),
    FindingRow(id="attention_written_out", find=attention_written_out, is_mended_in_code=True),
    FindingRow(
        id="solver_steps", find=solver_steps, is_mended_in_code=True, takes_place_of="activations"
    ),
    FindingRow(
        id="graphs_of_results",
        find=graphs_of_results,
        is_mended_in_code=True,
        grows=True,
        takes_place_of="unused_graph",
    ),
    FindingRow(
        id="retained_graph",
        find=retained_graph,
        is_mended_in_code=True,
        takes_place_of="activations",
    ),
    FindingRow(
        id="parametrized_weight",
        find=parametrized_weight,
        is_mended_in_code=True,  # the reads to come take no more either
        takes_place_of="activations",
    ),
    FindingRow(
        id="repeated_turns",
        find=repeated_turns,
        is_mended_in_code=True,  # the turns to come take no more either
        may_be_meant=True,
    ),
    FindingRow(
        id="rollout_graphs",
        find=rollout_graphs,
        is_mended_in_code=True,
        saves_at_most=True,
        takes_place_of="activations",
    ),
    FindingRow(
        id="one_checkpoint",
        find=one_checkpoint,
        is_mended_in_code=True,
        takes_place_of="activations",
    ),
    FindingRow(
        id="losses_before_backward",
        find=losses_before_backward,
        is_mended_in_code=True,  # the passes to come take no more either
        takes_place_of="activations",
    ),
    FindingRow(
        id="eval_with_grad",
        find=eval_with_grad,
        is_avoidable=True,
        is_mended_in_code=True,
        takes_place_of="unused_graph",
        saves_at_most=True,
    ),
    FindingRow(
        id="unused_graph",
        find=unused_graph,
        is_avoidable=True,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(id="unstepped_parameters", find=unstepped_parameters, is_mended_in_code=True),
    FindingRow(
        id="idle_experts", find=idle_experts, is_mended_in_code=True, takes_place_of="activations"
    ),
    FindingRow(
        id="padded_columns",
        find=padded_columns,
        is_mended_in_code=True,
        takes_place_of="activations",
    ),
    FindingRow(
        id="uneven_rows", find=uneven_rows, is_mended_in_code=True, takes_place_of="activations"
    ),
    FindingRow(
        id="unlabeled_positions",
        find=unlabeled_positions,
        is_mended_in_code=True,
        takes_place_of="activations",
    ),
    FindingRow(id="larger_inputs", find=larger_inputs, is_mended_in_code=True, may_be_meant=True),
    FindingRow(
        id="unconsumed_forward",
        find=unconsumed_forward,
        is_mended_in_code=True,
        saves_at_most=True,
        may_be_meant=True,
    ),
    FindingRow(
        id="copied_ddp",
        find=copied_ddp,
        is_avoidable=True,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(
        id="evaluation_outputs", find=evaluation_outputs, is_avoidable=True, saves_at_most=True
    ),
    FindingRow(
        id="collected_outputs", find=collected_outputs, is_avoidable=True, saves_at_most=True
    ),
    FindingRow(
        id="gathered_outputs",
        find=gathered_outputs,
        is_avoidable=True,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(id="gradients_kept", find=gradients_kept, is_avoidable=True, saves_at_most=True),
    FindingRow(
        id="two_copies",
        find=loaded_copies,
        is_avoidable=True,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(
        id="retry_in_except", find=retry_in_except, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(
        id="spent_inputs",
        find=spent_inputs,
        is_mended_in_code=True,
        takes_place_of="kept_in_store",
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="left_hooks", find=left_hooks, is_mended_in_code=True, saves_at_most=True, grows=True
    ),
    FindingRow(
        id="uncollected_garbage",
        find=uncollected_garbage,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="finished_models",
        find=finished_models,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="whole_copy",
        find=whole_copy,
        is_avoidable=True,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(id="frozen_twins", find=frozen_twins, is_mended_in_code=True, saves_at_most=True),
    FindingRow(id="unused_cache", find=unused_cache, is_mended_in_code=True),
    FindingRow(
        id="concatenated_copy", find=concatenated_copy, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(
        id="kept_from_start",
        find=kept_from_start,
        is_mended_in_code=True,
        takes_place_of="largest_line",
        saves_at_most=True,
    ),
    FindingRow(
        id="loaded_whole",
        find=loaded_whole,
        is_mended_in_code=True,
        saves_at_most=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="state_dicts",
        find=state_dicts,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="requested_outputs",
        find=requested_outputs,
        is_mended_in_code=True,  # those of the layers to come are saved, too
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="waiting_objects",
        find=waiting_objects,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="model_of_each_thread",
        find=model_of_each_thread,
        is_mended_in_code=True,  # the models to come are saved, too
    ),
    FindingRow(
        id="kept_checkpoint",
        find=kept_checkpoint,
        is_mended_in_code=True,
        saves_at_most=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="repeated_heads",
        find=repeated_heads,
        is_mended_in_code=True,
        saves_at_most=True,
        takes_place_of="kept_in_store",
    ),
    FindingRow(
        id="kept_in_store",
        find=kept_in_store,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="generation_scores",
        find=generation_scores,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="kept_by_calls",
        find=kept_by_calls,
        is_mended_in_code=True,
        saves_at_most=True,
        grows=True,
    ),
    FindingRow(
        id="dense_embedding_gradient",
        find=dense_embedding_gradient,
        is_mended_in_code=True,
        saves_at_most=True,
    ),
    FindingRow(
        id="rebuilt_collection", find=rebuilt_collection, is_mended_in_code=True, saves_at_most=True
    ),
    FindingRow(
        id="lbfgs_history",
        find=lbfgs_history,
        is_mended_in_code=True,  # the pairs to come are saved, too
        takes_place_of="optimizer_state",
    ),
    FindingRow(id="double_precision", find=double_precision, is_mended_in_code=True),
    FindingRow(id="wide_weights", find=wide_weights, is_mended_in_code=True, saves_at_most=True),
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
