"""Card: PyTorch made to believe in a GPU that is not there.

cards: the GPUs that programs can be predicted for, with their sizes.
cuda_interface: ``torch.cuda`` as it answers on such a card.
stand_in_device: the device behind PyTorch's C++ side.
"""
