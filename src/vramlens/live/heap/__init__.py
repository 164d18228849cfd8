"""Heap: the living objects of the interpreter, searched from the roots to every tensor.

ancestors: the nearest of some objects on the way to a root.
cycles: circles of objects, and the edge to make weak.
deep_searches: how deep searches may look into autograd graphs.
dominators: bytes that would go if an object let go.
objects: reading an object without running its code.
parents: who held what a search found.
roots: where everything that is alive is reached from.
search: the search itself.
search_time: how long it may take.
tensors: PyTorch's tensors, storages and autograd nodes.
unnamed_holders: iterators of loops, and tensors behind NumPy arrays.
unreached_heap: objects that no root reaches, in groups.
looking_thread: the thread that a look at the heap is made for.
waiting_optimizers: optimizers, searched after all else.
tees: what the halves of an ``itertools.tee`` have yet to read.
"""
