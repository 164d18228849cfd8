"""First step: what the rest of a step needs that no earlier step tells of.

after_blocks: what may come after a model's repeated blocks.
first_step_need: the rest of a first step, as a range.
forward_progress: which of the model's repeated blocks a forward pass has done.
optimizer_lists: what an optimizer's call for all parameters still asks for.
"""
