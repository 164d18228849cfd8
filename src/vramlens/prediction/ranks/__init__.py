"""Ranks: one rank of a torchrun program, predicted alone, its peers made up.

collective_memory: what a collective asks of the allocator, and what it leaves in its tensors.
lone_process_group: ``torch.distributed`` without peers.
"""
