"""Splitting: the parts of a batch, and the proof that they give the gradient of the whole.

batch_parts: a batch's samples, and a few of them as a smaller batch.
gradient_runs: gradients of a few samples, and how far two are apart.
learned_splits: the split that one run of a program leaves for the next.
refusal_words: why a batch is not split.
sample_lists: lists in a batch that hold one item a sample.
split_check: the check on first use.
split_comparison: one comparison of a few samples, whole and in two parts.
split_measurements: what a comparison works on, and its answer.
split_proofs: the proofs by the form of a loss.
whole_comparison: the loss of the whole batch beside those of its parts.
"""
