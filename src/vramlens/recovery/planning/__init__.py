"""Planning: which blocks to recompute, and how to place a model on several GPUs.

placement: ``place``, a model's blocks spread over GPUs.
recompute_plan: ``plan``, the blocks to recompute within a budget.
shape_run: a forward with shapes only, block by block.
"""
