"""What is kept although the program is done with it, or need not be on the GPU.

collected_outputs: outputs of training steps, until an epoch ends.
default_argument: what a function's default arguments collect.
evaluation_outputs: outputs of an evaluation's batches, until it ends.
generation_scores: scores of all tokens that generate() keeps.
kept_by_calls: calls that have ended, and whose variables are kept.
kept_caches: keys and values that earlier passes left.
kept_from_start: data that was put on the GPU before the first step.
kept_in_store: a list, dict or cache that keeps something of each turn.
kept_on_ctx: attributes of a Function's ctx, after its backward pass.
linked_objects: nodes of trees and chains that lead to each other.
listed_batches: a list of all that a generator makes.
repeated_heads: a cache of keys and values that were repeated for all heads.
requested_outputs: attention weights and hidden states of all layers.
retry_in_except: tries that failed, while the error is handled.
unused_cache: keys and values for text that nobody generates.
waiting_objects: what objects keep on the GPU while they wait.
"""
