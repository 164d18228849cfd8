"""Why one rank holds more than its peers.

rank_differences: all reasons: a leak, lines, the allocator, memory outside PyTorch.
rank_against_peers: one rank beside what is usual among its peers.
card_differences: the same, where ranks have cards of several models.
cohort_differences: cohorts beside each other, such as the stages of a pipeline.
role_leaks: leaks of cohorts that do other work than each other.
stage_layout: what a stage holds more by the layout.
leak_differences: what grows on one rank alone.
own_work: what one rank alone does in every step.
main_cause: the main one of several causes.
cause_evidence: what all lines together say of a cause.
line_excess: a line that holds more.
causes: why a line does.
batches: larger batches.
bucket_copies: gradients beside the buckets of DDP.
reasons: what is not in the lines, such as which parameters a rank trains.
lone_frames: callers that only one rank has.
reserved_differences: memory that is reserved and not used.
"""
