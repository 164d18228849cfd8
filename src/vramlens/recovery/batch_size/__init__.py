"""Batch size: the largest batch that fits, from a few small probes.

balanced_batches: batches of a distributed job that cost all ranks the same.
batch_loader: a data loader whose batches fill a memory budget.
batch_size_answer: the answer of ``find_batch_size``, in words and as a finding.
largest_batch: ``find_batch_size``, by at most three probes.
peak_fit: the peak by the batch's size, with bounds.
predicted_batch_size: the same from predicted steps, without a GPU.
probe: one measured step that leaves nothing behind.
scaled_requests: a step's requests at sizes that were not run.
"""
