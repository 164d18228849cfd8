"""What is kept although the program is done with it, or need not be on the GPU.

collected_outputs: outputs of training steps, until an epoch ends.
default_argument: what a function's default arguments collect.
enlarged_by_steps: a tensor that each step enlarges.
evaluation_outputs: outputs of an evaluation's batches, until it ends.
float_images: images that are kept as float32.
generation_scores: scores of all tokens that generate() keeps.
kept_caches: keys and values that earlier passes left.
kept_from_start: data that was put on the GPU before the first step.
kept_in_store: a list, dict or cache that keeps something of each turn.
listed_batches: a list of all that a generator makes.
lists_of_loop: lists of a loop that goes on for more turns than ever.
repeated_heads: a cache of keys and values that were repeated for all heads.
requested_outputs: attention weights and hidden states of all layers.
retry_in_except: tries that failed, while the error is handled.
several_sequences: several sequences for each prompt.
unused_cache: keys and values for text that nobody generates.
"""
