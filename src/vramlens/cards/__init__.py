"""Cards: the GPUs that are known by name, and what one of some size leaves for a program.

known_cards: their kernels' capability, their memory, and what a process takes outside the allocator.
card_room: what a card leaves for PyTorch's allocator, and by how much a prediction may be off.
"""
