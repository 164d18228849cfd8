"""Sparse tensors: gradients with few rows, and matrices of which most is zero.

compressed_matrices: matrices of compressed indices (CSR, CSC).
sparse_gradients: gradients with few rows, and sparse matrices.
sparse_products: sparse matrices times dense ones.
"""
