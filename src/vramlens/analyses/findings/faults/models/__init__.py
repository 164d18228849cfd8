"""Models and optimizers that are there more than once, or whose work is over.

casts_of_gone_models: what autocast keeps of models that are gone.
copied_ddp: gradient buckets of a copied DistributedDataParallel.
earlier_optimizers: states of optimizers that a later one follows.
finished_models: models whose training is over, beside the next.
frozen_in_name: a module with requires_grad = False, which freezes nothing.
frozen_twins: frozen weights that a second module has, too.
kept_checkpoint: what was loaded for a model, or copied of its training, beside it.
left_in_groups: what an optimizer's groups have and no module has any more.
model_of_each_thread: equal models that threads built for themselves.
replaced_states: what an optimizer keeps of parameters that it no longer has.
saved_modules: layers that are trained whole beside adapters.
state_dicts: weights of several models, where no model runs.
trained_base: a base model that is trained with its adapters.
undivided_copy: an average of whole weights, where each rank has a part of them.
unmatched_freeze: a loop that freezes parameters by name, and no name fits.
"""
