"""What the expression that failed makes more of than may be needed, by the call in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

FAR_LARGER, _PADDED_FAR = 2, 8
"""Times the largest tensor that rows can be from; that a transform with the usual padding can be of, in two
dimensions.
"""
MUCH = 0.25
"""Of what is in use, with the failed request: a smaller one failed for what was there already."""


@dataclass(frozen=True, slots=True)
class ExpressionUse:
    """A call that makes more than is often needed.

    Attributes:
        call: what it looks like in an expression.
        reading: what it makes, in words that follow "it".
        fix: what to do instead, and on which condition.
        unless: what in the same expression says that this is done already.
        stays: whether what it makes is too much also where it is kept, not only at the moment it is made.
        for_graph: whether only what a graph keeps is meant: a result that the program keeps is another's.
        if_larger: how many times as large as the largest tensor in use it must be: rows that an index
            picks once each are a batch; 0 where that does not matter.
        in_backward: whether its backward pass makes as much, and needlessly too.
        spreads: the form in which what is computed from it is as much larger than it need be.
        makes_several: whether it asks for more than one tensor, of which the last may have failed.
        least_share: of what is in use, from which on it is too much where it is kept.
    """

    call: re.Pattern[str]
    reading: str
    fix: str
    unless: re.Pattern[str] | None = None
    stays: bool = False
    if_larger: int = 0
    least_share: float = MUCH
    for_graph: bool = False
    in_backward: bool = False
    makes_several: bool = False
    spreads: re.Pattern[str] | None = None


ANY_CALL = re.compile("")
"""Of a use that more than the text of an expression tells."""


def of_call(
    call: str, reading: str, fix: str, unless: str | None = None, **conditions: Any
) -> ExpressionUse:
    """The use of a call by such a pattern, with what in the same expression says that this is done."""
    pattern = None if unless is None else re.compile(unless)
    return ExpressionUse(re.compile(call), reading, fix, pattern, **conditions)


def _of_rows(call: str, reading: str, fix: str) -> ExpressionUse:
    return ExpressionUse(re.compile(call), reading, fix, stays=True, if_larger=FAR_LARGER)


_ROWS = r"[\w.]+\[(?!None\b)[^\[\]:]+\]|[\w.]+\.index_select\([^()]*\)"
"""Rows that an index picks. (One that is no tensor makes a view, and asks for nothing.)"""
_WEIGHT = r"(?:[\w.]*[._])?(?:weights?(?:_\w+)?|W|kernels?)(?:\.data)?"
"""A layer's weight, as programs call it."""
_NEW_AXIS = r"(?:\[[^\]]*None[^\]]*\]|\.unsqueeze\([^()]*\))"
_WITH_AXIS = rf"[\w.]+{_NEW_AXIS}"
"""A tensor with one more dimension, over which it is repeated."""
_ASSIGNED = re.compile(r"^(?:return\s+|[\w.,\s\[\]]+(?<![=!<>])=(?!=)\s*)")
"""What stands before the value of a statement."""
_USES = (
    of_call(
        r"\blinalg\.svd\(|\btorch\.svd\(",
        "makes both square factors in full",
        "pass full_matrices=False: what is left out belongs to singular values of zero",
        r"full_matrices\s*=\s*False|some\s*=\s*True",
    ),
    of_call(
        r"\blinalg\.qr\(",
        "makes the square factor in full",
        'pass mode="reduced", or "r" where only that factor is used',
        r"mode\s*=\s*[\"'](?:reduced|r)[\"']",
    ),
    of_call(
        r"\b(?:arg)?sort\(",
        "sorts all entries, and makes an index of 64 bits for each beside the copy",
        "if only the largest or smallest are used, call torch.topk (largest=False for"
        " the smallest); for the rank of one entry, count what"
        " is larger: (x > own).sum(-1, dtype=torch.int32)",
        makes_several=True,
    ),
    of_call(
        r"\bone_hot\(|\beye\([^()]*\)\[",
        "makes a number for each class of each entry",
        "use the class numbers themselves: scatter_add_ into zeros for counts, gather to pick"
        " entries, cross_entropy for a loss, an embedding for a product",
        stays=True,
    ),
    of_call(
        r"\beinsum\([^,]*[\"'][^\"',]*,[^\"',]*,[^\"']*[\"']",
        "multiplies its operands from left to right, and the first two may make far more than the"
        " result",
        "install opt_einsum, which torch.einsum then uses to find the order that makes least; or"
        " write it as products of two, those that add up the longest index first",
    ),
    of_call(
        r"\.expand(?:_as)?\([^()]*\)\.(?:contiguous|clone|reshape)\(",
        "writes out what expand() had made a view of",
        "leave it a view where what follows takes it as it is: products and sums do (a view with"
        " the sizes split, x[:, None], instead of a reshape)",
        stays=True,
    ),
    of_call(
        r"\brepeat_interleave\(|\.repeat\(|\.tile\(|\btorch\.tile\(",
        "copies what it repeats",
        "use expand(), a view, where what follows takes it as it is (cat, reshape and contiguous"
        " copy it after all); else repeat later, what is smaller: a layer's output instead of its"
        " input, what leaves a cache instead of what goes in",
        stays=True,
        # It repeats rows, and what follows has as many. Along other dimensions sizes tell nothing.
        spreads=re.compile(r"\brepeat_interleave\([^()]*(?:dim\s*=\s*0|,\s*0)\s*\)"),
    ),
    of_call(
        r"\binterpolate\(|\bresize\(|\.upsample\w*\(",
        "makes all samples at their new size at once",
        "if a layer without neighbors follows (a 1x1 convolution, a linear layer), apply it"
        " before, to the smaller maps; if only some of the result is used, such as its argmax, do"
        " it for one sample (or a few) at a time, and keep only that",
        stays=True,
        least_share=0.5,  # a decoder that resizes its maps needs them
        for_graph=True,
    ),
    of_call(
        r"[\[(]\s*(?:copy\.)?deepcopy\([^()]*\)\s+for\b",
        "makes all copies before the first is used",
        "make each copy in the loop that uses it, so that one is alive at a time; keep what is"
        " computed with it",
        stays=True,
    ),
    of_call(
        r"\bdeepcopy\(self\)",
        "copies all that self has, also the copies that it made before",
        "if it keeps its copy itself, as self.teacher, set that to None before this line: else each"
        " copy has all the earlier ones in it; or copy only the parts that are used",
        stays=True,
    ),
    of_call(
        r"\bdeepcopy\(",
        "copies all that it is given, on the GPU",
        "if the copy is a reference beside adapters, leave it out: switch the adapters off while"
        " it is asked (PEFT: disable_adapter()); if it is kept to be restored or averaged, keep"
        " its state_dict on the CPU",
        stays=True,
    ),
    of_call(
        r"\bstack\(.*\[[^\]]*:[^\]]*\].*\bfor\b",
        "copies every window, and each entry as often as windows hold it",
        "make the windows a view, x.unfold(dimension, length, step): they are its last dimension",
        stays=True,
    ),
    of_call(
        r"\btorch\.where\(\s*~?[\w.\[\]]+\s*\)",
        "makes a number of 64 bits for each dimension of each entry that is true",
        "where most are true, keep the mask and apply it to the whole: (loss * mask).sum(), or"
        " torch.where(mask, x, 0); of few, make the mask stricter first",
        stays=True,
        least_share=0.15,  # what is picked by them, and its gradients, are as long
    ),
    of_call(
        r"\b(?:nonzero|argwhere)\((?!.*as_tuple\s*=\s*True)",
        "makes a number of 64 bits for each dimension of each entry that is not zero",
        "for a bounding box, ask each axis first whether it has any (mask.any(dim=...)), and take"
        " nonzero() of these; to count, mask.sum(); to pick, x[mask]; of a list of edges, keep"
        " .to(torch.int32)",
        stays=True,
    ),
    of_call(
        r"\b(?:bmm|matmul|mm)\(\s*([\w.]+)\.(?:transpose\([^()]*\)|t\(\)|m?T),\s*\1\s*\)"
        r"|\b([\w.]+)\.(?:transpose\([^()]*\)|t\(\)|m?T)\s*@\s*\2\b(?!\.)",
        "makes a number for each pair of its columns",
        "if a row is a feature and the columns are samples or pixels, as for the Gram matrix of a"
        " style loss, multiply in the other order: x @ x.transpose(-1, -2) has a number for each"
        " pair of rows; if these pairs are what is wanted (normal equations), add them up over a"
        " part of the rows at a time",
        stays=True,
    ),
    of_call(
        r"\bMultivariateNormal\((?!.*scale_tril)",
        "makes the covariance once for each mean that it is given, to check and to factorize it",
        "of one covariance, ask a distribution with one mean, and move the others: means +"
        " MultivariateNormal(torch.zeros(n), covariance).sample((len(means),)) to draw, and"
        " MultivariateNormal(torch.zeros(n), covariance).log_prob(x - means) for densities",
        if_larger=FAR_LARGER,
    ),
    of_call(
        r"\bkron\(",
        "writes out each entry of one matrix times the whole other one",
        "keep the two matrices and apply each on its side: torch.kron(a, b) @ x.flatten() is (a @"
        " x @ b.T).flatten(), and the sum torch.kron(d, eye) + torch.kron(eye, d) applied to it is"
        " that of d @ x + x @ d.T",
        stays=True,
    ),
    of_call(
        rf"(?:^|[(,])\s*{_WEIGHT}\s*\+\s*(?:[\w.]+\s*\*\s*)?\(?\s*[\w.]+\s*@",
        "makes a new matrix as large as the weight",
        "apply the factors to the activations instead, and add the results: F.linear(x, weight) +"
        " scale * F.linear(F.linear(x, a), b) is x with weight + scale * (b @ a)",
        stays=True,
    ),
    of_call(
        r"\bblock_diag\(",
        "writes out the zeros between the blocks",
        "keep the blocks beside each other, torch.stack(blocks), and multiply them as a batch:"
        " blocks @ x.view(n, size, 1)",
        stays=True,
    ),
    of_call(
        r"\b(?:F|functional)\.unfold\(",
        "copies each pixel once for each place of the kernel that it has",
        "if a product with weights follows, it is a convolution: F.conv2d(x, weight.view(-1,"
        " channels, k, k)); for a mean, F.avg_pool2d; else do it for one sample (or a few) at a"
        " time",
        stays=True,
    ),
    of_call(
        r"\bfft\.fft[2n]?\(",
        "makes a complex number for every frequency",
        "of real numbers half of these mirror the others: torch.fft.rfft, rfft2 or rfftn makes"
        " that half, and irfft goes back; of complex ones, do it for one sample (or a few) at a"
        " time",
    ),
    of_call(
        r"\b(?:tril|triu)\(\s*torch\.(?:ones|full)\(",
        "makes a mask of all pairs of positions",
        "for causal attention pass is_causal=True to F.scaled_dot_product_attention, which needs"
        " no mask",
        stays=True,
    ),
    of_call(
        r"\b(?:F|functional)\.leaky_relu\(",
        "keeps its input for the backward pass, beside its result, which the next layer keeps",
        "pass inplace=True: the backward pass then takes the result alone (not where the input"
        " itself is used again)",
        r"inplace\s*=\s*True",
        stays=True,
        least_share=0.4,
        for_graph=True,
    ),
    of_call(
        r"\.to_dense\(",
        "makes every zero of a sparse tensor",
        "keep it sparse: torch.sparse.mm, or index_add_ over its entries",
        stays=True,
    ),
    of_call(
        r"\bto_dense_adj\((?!.*batch)",
        "makes one matrix of all nodes",
        "if it is a batch of graphs, pass the batch vector: to_dense_adj(edge_index, batch) makes"
        " a small matrix for each; or leave the edges as they are, in a list (GCNConv, a sparse"
        " product)",
        stays=True,
    ),
    of_call(
        r"\+\s*(?:[\w.]+(?:e-\d+)?\s*\*\s*)?torch\.eye\(",
        "makes a square matrix for a diagonal, and a copy of the sum",
        "add to the diagonal in place: x.diagonal(dim1=-2, dim2=-1).add_(…), of a clone where the"
        " backward pass needs x",
    ),
    of_call(
        r"\bMultivariateNormal\(.*scale_tril\s*=\s*torch\.diag",
        "makes a square matrix of a diagonal",
        "use torch.distributions.Independent(Normal(loc, scale), 1): the same samples, densities"
        " and KL divergence, without the matrices (likewise for what it is compared with)",
        stays=True,
    ),
    of_call(
        r"\b(?:diag_embed|torch\.diag|torch\.eye)\(",
        "makes a square matrix of a diagonal",
        "multiply rows or columns by the diagonal instead: x * d[:, None]",
        stays=True,
    ),
    of_call(
        rf"{_WITH_AXIS}\s*-\s*{_WITH_AXIS}",
        "makes the difference of each pair in every column",
        "for distances call torch.cdist (and square its result for squared ones), which makes one"
        " number per pair; if only some pairs are used (those of a diagonal), compute these; or"
        " take a part of the rows at a time",
        stays=True,
    ),
    of_call(
        r"\b([\w.]+)\s*@\s*\1\.(?:t\(\)|m?T\b)",
        "makes a number for each pair of its rows",
        "if only some pairs are used, compute these: (x[i] * x[j]).sum(-1); if x has more rows"
        " than columns and is multiplied on, take the product of its columns: (x @ x.T) @ x is x @"
        " (x.T @ x), and Newton-Schulz iterations (Muon) work on the transpose of a tall matrix; a"
        " preconditioner (Shampoo, SOAP) leaves sides as long as a vocabulary out: compare the"
        " longer side with its limit; else take a part of the rows at a time",
        r"softmax",
    ),
    of_call(
        r"\b([\w.]+)\s*@\s*\1\b(?!\.)",
        "multiplies a square matrix by itself",
        "if it is x @ x.T of an x with more rows than columns, take the product of its columns: (x"
        " @ x.T) @ x is x @ (x.T @ x), and Newton-Schulz iterations (Muon) work on the transpose"
        " of a tall matrix; if a vector or a thin matrix follows, multiply that twice: a @ (a @ v)",
    ),
    of_call(
        rf"{_WITH_AXIS}\s*(?:[<>]=?|[!=]=)\s*{_WITH_AXIS}",
        "compares each entry of one with each of the other",
        "to count or to rank, sort one side and ask torch.searchsorted (an AUC is a sum of ranks);"
        " for equal entries torch.isin or torch.unique; else compare a part of the rows at a time",
        stays=True,
    ),
    of_call(
        r"@\s*[\w.]+(?:\[[^\]]*\])?\.(?:t\(\)|T\b)",
        "makes a number for each row with each other one",
        "for a diagonal or listed pairs compute (x[i] * y[j]).sum(-1); for the best of each row,"
        " or its rank, take a part of the rows at a time and keep only that",
        r"softmax|transpose",
    ),
    of_call(
        rf"\bembedding\([^()]*,\s*[\w.]+\(\s*{_WEIGHT}\b"
        rf"|\b(?:normalize|softmax|tanh|sigmoid|dropout|layer_norm)\(\s*{_WEIGHT}\b[^()]*\)"
        r"\[(?!None\b|-?\d+\])[^\[\]:]+\]",
        "computes the whole table, of which rows are picked after it",
        "look the rows up first, and compute on those alone: F.normalize(F.embedding(ids, weight),"
        " dim=-1)",
        stays=True,
        least_share=0.4,
        in_backward=True,
    ),
    of_call(
        r"(?:unsqueeze\(0\)|\[None\b[^\]]*\])\.masked_fill\(.*\)\.(?:logsumexp|sum)\(",
        "makes a number for each pair of rows, to leave out some of them",
        "if the mask is an order (who is still at risk in a Cox model: time[j] >= time[i]), sort"
        " the rows once and take torch.logcumsumexp (cumsum of sums), which needs no pairs; else"
        " take a part of the rows at a time",
        stays=True,
    ),
    of_call(
        rf"\blogsumexp\(\s*(?:{_WITH_AXIS}\s*\+\s*[\w.]+|[\w.]+\s*\+\s*{_WITH_AXIS})\s*,",
        "makes a number for each pair of entries, to add them up",
        "make the sums alone, as a product: with m = alpha.amax(-1, keepdim=True),"
        " ((alpha - m).exp() @ trans.exp()).log() + m is torch.logsumexp(alpha.unsqueeze(-1) +"
        " trans, -2), and keeps no pairs for the backward pass (trans.exp() can be made once, before"
        " a loop)",
        stays=True,
    ),
    of_call(
        r"\blog_softmax\(|\blogsumexp\(",
        "makes a number for each class of each row",
        "make logits only where they count (with transformers, logits_to_keep=N for the last N"
        " positions), and take the loss of a part of the rows at a time; to pick one class a row,"
        " F.cross_entropy(...,"
        ' reduction="none") keeps one tensor less',
    ),
    of_call(
        r"\b(?:linalg\.inv|inverse|linalg\.pinv|pinverse)\(",
        "makes the whole inverse",
        "solve for what is used of it: torch.linalg.solve, cholesky_solve, lstsq",
    ),
    of_call(
        r"\btorch\.(?:zeros|full|empty)\(\s*\(?([\w.]+),\s*\1\b(?!\s*,\s*[\w.]+\s*[,)])",
        "makes a square matrix whole, its zeros too",
        "if most of it stays zero, as in an adjacency matrix, make it sparse:"
        " torch.sparse_coo_tensor(index, values, size), or add over its entries with index_add_;"
        " else compute a part of the rows at a time",
        r"device\s*=\s*[\"']cpu[\"']",
    ),
    of_call(
        r"\btorch\.(?:zeros|ones|empty|full)\(",
        "is made whole on the GPU before it is filled",
        'make it on the CPU (device="cpu") and move each piece, and what is computed with it, there'
        " (`.cpu()`); or make it as large as one piece needs, or of a smaller type (torch.uint8"
        " for pixels)",
        r"device\s*=\s*[\"']cpu[\"']",
    ),
    of_call(
        r"\btorch\.stack\(",
        "copies what it puts together",
        "if a sum or a mean of the parts follows, weighted or not, add them up one after the"
        " other: sum(w * part for w, part in zip(weights, parts)); else move the parts to the CPU"
        " first, or write each into one tensor that is made beforehand",
        stays=True,
        least_share=0.4,
    ),
    of_call(
        r"\btorch\.(?:cat|concat)\(\s*[\[(]\s*self\.[\w.]+(?:\[[^\]]*\])?\s*,",
        "copies all that is there to add a piece",
        "make it once, as long as it will get, and write each piece to its place (cache[:, :, n :"
        " n + 1] = k); keep in it what cannot be made again, such as keys before they are repeated"
        " for all heads",
    ),
    of_call(
        r"\btorch\.(?:cat|concat|hstack|vstack)\(",
        "copies what it puts together",
        "if a product with a weight follows, split the weight: cat([a, b]) @ w is a @ w[:n] + b @"
        " w[n:]; if a sum over the columns follows, as in x @ x.T, add up those of the parts; else"
        " move the parts to the CPU first, or write each into one tensor that is made beforehand",
        stays=True,
        least_share=0.4,  # layers of a network put maps together, too
    ),
    of_call(
        r"\bbincount\(",
        "counts every number up to the largest that it is given",
        "count only the numbers that occur: numbers, counts = torch.unique(x, return_counts=True)"
        " gives both, without zeros to leave out",
        if_larger=FAR_LARGER,
    ),
    of_call(
        r"\bfft\.rfft[2n]?\([^()]*,\s*(?:s|n)=(?!2\b)",
        "pads every input with zeros to the size that it is given, and transforms them all",
        "pad no further than the result needs: a convolution of n with m numbers needs n + m - 1 in"
        " each dimension, not the size of the image that it is put into afterwards; if so many are"
        " meant, transform a part of the inputs at a time",
        stays=True,
        if_larger=_PADDED_FAR,
        in_backward=True,
    ),
    of_call(
        r"^[\w.]+\[\s*torch\.randperm\(",
        "copies all rows, to put them in another order",
        "keep the order instead, and pick each batch by it: order = torch.randperm(n), then"
        " x[order[i : i + batch]]",
    ),
    of_call(
        r"\.(?:(?:float|double|half|bfloat16)\(\)|to\(torch\.\w+\))(?:\.(?:div|mul|add|sub)_?\([^()]*\))*"
        r"\[(?!None\b|-?\d+\])[^\[\]:]+\]\s*$",
        "converts all rows, of which some are picked after it",
        "pick the rows first, and convert only those: x[index].float()",
        stays=True,
    ),
    _of_rows(
        rf"^(?:{_ROWS})\s*\*|\*\s*(?:{_ROWS})$",
        "copies one row for each index, to multiply it",
        "if the products are then summed over another index (index_add, scatter_add, a layer's"
        " aggregate), a sparse product does both without them: torch.sparse.mm(adjacency, x); else"
        " do a part of the index at a time",
    ),
    _of_rows(
        rf"{_NEW_AXIS}\s*\*(?!\*)|(?<!\*)\*\s*{_WITH_AXIS}",
        "makes a product for each pair of entries",
        "if a loop uses one slice of it at a time, as a scan over time steps does, compute that"
        " slice in the loop; if it is added up over an index, torch.einsum or @ makes the sums"
        " alone; the sum over all pairs of entries is (x.sum(1) ** 2 - (x ** 2).sum(1)) / 2; else"
        " take a part of the rows at a time",
    ),
    _of_rows(
        rf"^(?![\w.]*(?:emb|tok|wte|wpe|table)){_WEIGHT}\[(?!None\b)[^\[\]:]+\]$",
        "copies one weight for each index",
        "multiply all rows of one kind with its weight at once, kind after kind: x[kind == k] @"
        " weight[k], or sort the rows by kind and take slices of them",
    ),
    _of_rows(
        rf"^(?:{_ROWS})$",
        "copies one row for each index",
        "if a layer or a product follows, apply it before the rows are copied: layer(x)[index]; if"
        " rows are compared, make one matrix product of all of them, and pick its entries by the"
        " index",
    ),
    of_call(
        r"(?<!\])\.(?:float|half|bfloat16)\(\)\s*(?:/|\.div\()\s*\(?(?:255|256)\b",
        "converts every pixel to a wider type, and copies the result",
        "crop or resize the images first, and convert what is left of them; x.float().div_(255)"
        " makes one copy instead of two",
        makes_several=True,
    ),
)
"""The first that fits counts."""


def use_of_expression(expression: str) -> ExpressionUse | None:
    """What an expression, or the value of a statement, makes more of than may be needed; None where its
    calls say nothing.
    """
    value = _ASSIGNED.sub("", expression)
    for use in _USES:
        is_done = use.unless is not None and use.unless.search(value)
        if use.call.search(value) and not is_done:
            return use
    return None
