"""Requests that the program need not make.

concatenated_copy: all gradients or parameters in one tensor.
converted_whole: the wide form of a tensor that is kept in a narrow type.
current_call: since when the call of a line has run (no finding).
dense_embedding_gradient: gradients as large as an embedding's table.
joint_covariance: the covariance of all points that a Gaussian process is asked about.
large_request: a request that no limit would have held.
loaded_whole: a file that is loaded to the GPU as a whole.
previous_result: a result that its name has while the next one is made.
rebuilt_collection: the new entries of a list, beside all the old ones.
square_growth: a request that grows with the square of the batch.
"""
