"""Requests: what a predicted program asked of the allocator, and what that leads to.

request_log: requests and frees in order, each with its stack and module.
served_requests: the same served by the replayed allocator.
served_snapshot: a snapshot of that, as PyTorch's own.
compiled_requests: the requests of a compiled program.
other_draws: the same with random numbers drawn in another order.
late_completions: the same with memory that another stream used coming free late.
skipped_step: the same with a first step that a gradient scaler skips.
"""
