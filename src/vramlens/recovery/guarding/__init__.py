"""Guarding: training steps that survive out of memory with the gradients they would have had.

admission: the predicted peak of a batch, before it runs.
chunked_retry: ``retry``, for inference.
optimizer_commit: the optimizer's step, outside of what is retried.
guard: ``guard``, and the order of a step's attempts.
guard_arguments: the model and the optimizer, refused where they are something else.
guard_log: counts and events.
guard_options: what a guard may do.
guard_story: the report, in words and as findings.
hf_trainer: ``guard_trainer``, for a Hugging Face Trainer.
part_size: how many samples a part may have.
rank_agreement: how ranks agree on an attempt.
remedies: what to do differently after a failure.
restarting: a program run again with the split that it has learned.
step_start: everything as it was before a step's first batch.
stopping: why a guard stops, and the way on.
"""
