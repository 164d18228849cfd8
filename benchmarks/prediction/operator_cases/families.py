"""Which family each operator's cases belong to, for a table that a page can hold."""

from __future__ import annotations

import re

OTHER = "pointwise and others"
_FAMILIES = {
    "optimizers, whole steps": r"optim\.|clip_grad_norm|swa|grad_scaler|vmap|per_sample|gradient_penalty|jac|hessian"
    r"|jvp|own_function|save_on_cpu|distribution\.|kl$|mlp|contrastive|.*checkpoint|shared_gradient"
    r"|grid_of_distances|nested_tensor|residual|autocast",
    "recurrent layers": r"(lstm|gru|rnn)(_cell)?$",
    "attention": r"attention|multihead|encoder_layer|decoder_layer",
    "convolutions": r"conv\d|conv_transpose|fold$|unfold(_copy)?$",
    "pooling, resampling": r".*pool\d|max_unpool|interpolate|upsample|grid_|affine_grid|pixel_|channel_shuffle",
    "norms": r".*(batch|layer|group|instance|rms|response|weight|spectral)_norm|normalize|renorm|standardized"
    r"|rms_",
    "softmax": r".*soft(max|min)|_safe_softmax",
    "losses": r".*_loss|cross_entropy|kl_div|bce_with|binary_cross|cosine_similarity|pairwise_distance|.*pdist"
    r"|cdist",
    "linear algebra": r"linalg\.|cholesky|eig|svd|qr|lu($|_)|inv$|pinv|pinverse|det$|slogdet|logdet|solve"
    r"|triangular_solve|lstsq|matrix_(exp|power|rank|norm)|cond$|geqrf|ormqr|householder|vander|pca_"
    r"|multivariate|mahalanobis|norm_nuclear|norm\.nuc|norm_2|lu_unpack|cumulative_products",
    "products of matrices": r"(bi)?linear$|(b|add|addb|baddb)?mm($|\.)|(add)?mv$|(__r)?matmul|addr$|outer|inner|v?dot$"
    r"|kron|tensordot|multi_dot|chain_matmul|einsum|cross$",
    "Fourier transforms": r"fft|i?stft|i?r?fft|h?fft|complex_matmul",
    "sparse tensors": r"sparse_|to_sparse",
    "sorting, choosing": r"(arg|m)?sort$|topk|unique|searchsorted|bucketize|kthvalue|mode$|.*median|.*quantile"
    r"|multinomial|top_p|histc|histogram|bincount|isin$|randperm|combinations|cartesian",
    "running sums": r"cum|logcumsumexp|.*trapz|.*trapezoid|diff$|gradient$",
    "reductions": r"(nan)?sum|(nan)?mean|amax|amin|argm|max\.red|min\.red|max$|min$|prod$|var|std|.*norm$|norm\."
    r"|logsumexp|all$|any$|aminmax|count_nonzero|trace|cov$|corrcoef|vector_norm|matrix_norm|.*_sum|.*_mean"
    r"|dist$|equal|allclose|hash_tensor|.*segment_reduce",
    "indexing, embeddings": r"embedding|one_hot|index|gather|take|put$|_?_?getitem|.*masked|scatter|where|nonzero"
    r"|argwhere|select|assign|_unsafe_masked|nonzero_static",
    "joining, copying, views": r"cat$|.*stack|chunk|split|unbind|tile|repeat|expand|roll|flip|rot90|transpose|permute"
    r"|to_channels_last|tri[lu]|diag|block_diag|pad|constant_pad|slice|clone|contiguous|view|reshape|as_strided|narrow"
    r"|meshgrid|broadcast|movedim|squeeze|unsqueeze|resize|atleast|ravel|t$|t_copy|to$|detach|copy_$",
}  # fmt: skip


def family_of(key: str) -> str:
    """The family of a case by its name; the first that fits."""
    name = key.partition("/")[0].partition(" ")[0].removeprefix("db.")
    name = name.removeprefix("nn.functional.").removeprefix("masked.")
    for family, pattern in _FAMILIES.items():
        if re.match(pattern, name):
            return family
    return OTHER
