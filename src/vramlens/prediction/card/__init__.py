"""Card: PyTorch made to believe in a GPU that is not there.

cuda_interface: ``torch.cuda`` as it answers on such a card.
stand_in_device: the device behind PyTorch's C++ side.
older_files: files that were there before a prediction: a predicted script removes none of them.
open_tensors: ``safetensors.safe_open`` of a file that the predicted program saved itself.
operators_of_libraries: torchvision's operators where its compiled library cannot be loaded.
saved_files: checkpoints that a predicted program saves.
saved_paths: files that a predicted program saved, as the file system shows them to it.
taken_as_eager: ``torch.compile`` and CUDA graphs: run as they are written.
patched_tensors: tensors, modules and marks of PyTorch, changed so that they work with shapes.
"""
