"""Memory: who holds it at one moment, over time, and what of it is free but unusable.

fragmentation: free bytes inside reserved segments, and the blocks that keep them there.
heap: who holds the requested bytes, by line, category, phase, module, region and stack.
run_shape: the peak of each step, and one sentence on how the highest one comes about.
"""
