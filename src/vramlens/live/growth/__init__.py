"""Growth: which bytes each step leaves behind, by objects and by what counters say.

accounting: growth that no judged pile explains.
autocast_cache: copies that torch.autocast's cache keeps.
backlogs: containers whose removals do not keep up.
births: the step in which each live storage was born.
lagging_tees: what the slower branch of itertools.tee still holds.
last_frames: the frames in which a program ended.
line_observer: the lines that made tensors, in steps that are traced.
looks: when the heap is looked at.
pace: how births are spread over the steps.
piles: live bytes by step of birth, at the object where they pile up.
ration: the processor time that may be spent.
remade_tensors: tensors that are made anew, larger.
shape_kernels: kernels that are compiled for each new shape.
stores: growth by the container that it is stored in.
unseen_births: bytes of what nobody saw being born.
youngest: the tensors that were made last.
"""
