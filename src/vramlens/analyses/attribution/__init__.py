"""Attribution: of each allocation its step, phase, category, user line, module, region and name.

attribution: all of that, for every allocation of a device.
categories: what each allocation is for.
model_copies: copies of a model that nothing uses.
modules: which part of the model each allocation belongs to.
named_shapes: types and shapes of tensors, where their names tell them.
names: which allocation is which tensor, where the recording names tensors.
optimizer_state: what an optimizer keeps for each parameter, by its class.
parameter_uses: what training does with the parameters, as its optimizers have them.
phases: which part of the training loop asked for each allocation.
remedies_in_use: what a program does already against its use of memory.
repeated_modules: whether what repeats are steps, or the layers and turns of one pass.
steps: where one ends and the next begins, and what says so.
trainable: parameters that training changes.
training: whether a recording shows any, for all that speak of it.
"""
