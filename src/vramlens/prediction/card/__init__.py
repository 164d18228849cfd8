"""Card: PyTorch made to believe in a GPU that is not there.

cards: the GPUs that programs can be predicted for, with their sizes.
cuda_interface: ``torch.cuda`` as it answers on such a card.
stand_in_device: the device behind PyTorch's C++ side.
hidden_shapes: what keeps libraries from seeing that tensors are shapes.
late_changes: changes to modules that only some programs import: made when they do.
lazy_layers: layers that learn their shapes from the first batch.
nested_tensors: tensors with ragged sizes, each a number of its own.
older_files: files that were there before a prediction: a predicted script removes none of them.
one_device: copies between devices, of which there is one: ``torch.nn.DataParallel`` and its like.
open_tensors: ``safetensors.safe_open`` of a file that the predicted program saved itself.
operators_of_libraries: torchvision's operators where its compiled library cannot be loaded.
saved_files: checkpoints that a predicted program saves.
saved_paths: files that a predicted program saved, as the file system shows them to it.
taken_as_eager: ``torch.compile`` and CUDA graphs: run as they are written.
tensor_types: ``torch.cuda.FloatTensor`` and its like.
tracing: programs that look at themselves: traces, graphs for a log, and ranges for a profiler.
"""
