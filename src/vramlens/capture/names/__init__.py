"""Names: the modules and the tensors that are alive, called as the program calls them.

claims: claims to storages, of which one wins.
holder_names: names of tensors that are not a model's, after who holds them.
live_heap: the live tensors, modules and optimizers.
module_hooks: hooks on all of the program's modules, of which PyTorch's warnings hear nothing.
module_marks: each allocation carries the path of the module that runs.
module_names: paths of all live modules at one moment.
module_paths: paths of modules while the program runs.
parameter_facts: what else is known of parameters.
sharded_names: what FSDP, DeepSpeed and Megatron-LM keep beside a model.
tensor_names: the name of each live storage.
uncollected: storages that only garbage keeps.
"""
