"""Failure: why a recorded request failed, and what surrounded the allocator then.

allocator_retry: a request that was refused although a free block of its size was there.
cause: why memory ran out, by what the failed step would have needed.
ending: whether a failed request was the end of the program, or whether it went on.
failed_request: the figures at one failed request.
first_step: what the rest of a step needs that no earlier step tells of.
headline: the answer to a failure in one sentence.
largest_use: what fills the memory, where that is one tensor or one line.
likeness: how a step's requests pair with the earlier step's, and what it keeps longer.
need: what a failed step would have needed to finish.
oom: the out-of-memory verdict of a recording.
refused_workspaces: failed requests that cuDNN does without.
step_evidence: whether what repeats are steps of a loop, or parts of one step.
step_scaling: how large the requests still to come would have been.
step_template: the earlier step that a failed step repeats.
surroundings: the device's memory, the process's limit, other processes, and the ledger of it all.
unconsumed_forward: forward passes that no backward pass has used when memory ran out.
"""
