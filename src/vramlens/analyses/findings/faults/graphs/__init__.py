"""Graphs that keep more than the backward pass needs.

abandoned_pass: a forward pass that nobody goes back through.
dequantized_weights: wide copies of quantized weights, which a product saves.
derivative_graphs: graphs of derivatives that are kept together.
gradient_cycles: what gradients keep after backward(create_graph=True).
graphs_of_results: graphs of earlier steps that a running sum or a list of losses keeps.
losses_before_backward: passes whose losses wait for one backward pass.
one_checkpoint: one checkpoint around all layers, which are computed again at once.
parametrized_weight: a weight that each turn of a loop computes anew.
repeated_turns: what every turn of a loop inside of a pass computed.
retained_graph: a graph that goes on through several backward passes, or outlives its step.
rollout_graphs: passes of a rollout, beside the pass of its update.
saved_by_function: what a custom Function saves and could compute again.
solver_steps: what a solver of differential equations keeps of all its steps.
"""
