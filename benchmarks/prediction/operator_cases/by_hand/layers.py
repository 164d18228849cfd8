"""Layers of networks: products, convolutions, norms, attention, recurrent layers, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Build = Callable[[Any], tuple[Any, ...]]


def _conv(shape: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Build:
    """A convolution of as many dimensions as its input has, with a bias."""
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(shape)]
    return lambda t: (
        lambda x, w, b: function(x, w, b, **options), t(*shape), t(*weight), t(weight[0]),
    )  # fmt: skip


def _conv_last(shape: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Build:
    return lambda t: (
        lambda x, w: F.conv2d(x, w, **options), t.last(*shape), t.last(*weight),
    )  # fmt: skip


def _transposed(shape: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> Build:
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[len(shape)]
    return lambda t: (lambda x, w: function(x, w, **options), t(*shape), t(*weight))


def _attention(shape: tuple[int, ...], keys: int | None = None, **options: Any) -> Build:
    batch, heads, length, width = shape

    def build(t: Any) -> tuple[Any, ...]:
        key, value = (t(batch, heads, keys or length, width) for _ in range(2))
        attend = F.scaled_dot_product_attention
        return lambda q, k, v: attend(q, k, v, **options), t(*shape), key, value

    return build


def _masked_attention(kind: str) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        shape = (4, 8, 512, 64)
        mask = {
            "bool": lambda: t.mask(4, 1, 512, 512, share=0.9),
            "row": lambda: t.mask(4, 1, 1, 512, share=0.9),
            "float": lambda: t.plain(512, 512),
            "trained": lambda: t(1, 8, 512, 512),
        }[kind]()
        attend = F.scaled_dot_product_attention
        return (
            lambda q, k, v, m: attend(q, k, v, attn_mask=m),
            t(*shape),
            t(*shape),
            t(*shape),
            mask,
        )

    return build


def _module(make: Callable[[], Any], *shape: int) -> Build:
    return lambda t: (t.module(make()), t(*shape))


def _multihead(**options: Any) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        layer = t.module(nn.MultiheadAttention(512, 8, batch_first=True))
        return lambda x, layer: layer(x, x, x, **options), t(8, 256, 512), layer

    return build


def _encoder(is_eval: bool, **options: Any) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        layer = t.module(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, **options))
        return layer.eval() if is_eval else layer, t(8, 256, 512)

    return build


def _decoder(t: Any) -> tuple[Any, ...]:
    return (
        t.module(nn.TransformerDecoderLayer(512, 8, batch_first=True)),
        t(8, 256, 512),
        t(8, 128, 512),
    )


def _packed(make: Callable[[], Any]) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        layer, lengths = t.module(make()), torch.linspace(128, 20, 32).long()

        def run(x: Any, layer: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

        return run, t(32, 128, 256), layer

    return build


def _embedding(**options: Any) -> Build:
    return lambda t: (
        lambda i, w: F.embedding(i, w, **options), t.whole(30000, 32, 256), t(30000, 128),
    )  # fmt: skip


def _bag(mode: str, is_weighted: bool = False) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        weights = t(2048, 32) if is_weighted else None
        return (
            lambda i, w, s: F.embedding_bag(i, w, mode=mode, per_sample_weights=s),
            t.whole(30000, 2048, 32), t(30000, 128), weights,
        )  # fmt: skip

    return build


def _bag_with_offsets(t: Any) -> tuple[Any, ...]:
    offsets = torch.arange(0, 65536, 32).to(t.device)
    return (
        lambda i, w: F.embedding_bag(i, w, offsets, mode="sum"),
        t.whole(30000, 65536),
        t(30000, 128),
    )


def _pair_loss(function: Callable[..., Any], **options: Any) -> Build:
    return lambda t: (lambda x, y: function(x, y, **options), t(4096, 512), t.plain(4096, 512))


def _class_loss(function: Callable[..., Any], **options: Any) -> Build:
    return lambda t: (lambda x, y: function(x, y, **options), t(4096, 1000), t.whole(1000, 4096))


def _resize(shape: tuple[int, ...], **options: Any) -> Build:
    return lambda t: (lambda x: F.interpolate(x, **options), t(*shape))


def _pad(mode: str, *sides: int) -> Build:
    return lambda t: (lambda x: F.pad(x, sides, mode=mode), t(8, 64, 96, 96))


def _ctc(t: Any) -> tuple[Any, ...]:
    targets = t.whole(99, 32, 60) + 1
    long, short = torch.full((32,), 300), torch.full((32,), 60)
    return lambda x: F.ctc_loss(x.log_softmax(-1), targets, long, short), t(300, 32, 100)


def _adaptive_loss(t: Any) -> tuple[Any, ...]:
    layer = t.module(nn.AdaptiveLogSoftmaxWithLoss(256, 20000, [2000, 8000]))
    return lambda x, layer: layer(x, t.whole(20000, 2048)).loss, t(2048, 256), layer


def _weight_norm(wrap: Any) -> Build:
    return lambda t: (t.module(wrap(nn.Linear(1024, 1024))), t(512, 1024))


BOTH: dict[str, Build] = {
    "linear/bias": lambda t: (F.linear, t(64, 128, 512), t(2048, 512), t(2048)),
    "linear/no_bias": lambda t: (F.linear, t(64, 128, 512), t(2048, 512)),
    "linear/rows": lambda t: (F.linear, t(8192, 512), t(512, 512), t(512)),
    "linear/narrow": lambda t: (F.linear, t(65536, 64), t(3, 64), t(3)),
    "linear/vector": lambda t: (F.linear, t(4096), t(1024, 4096), t(1024)),
    "linear/transposed": lambda t: (
        lambda x, w, b: F.linear(x.transpose(1, 2), w, b), t(16, 512, 256), t(1024, 512), t(1024),
    ),
    "linear/one_output": lambda t: (F.linear, t(65536, 128), t(1, 128), t(1)),
    "linear/gelu": lambda t: (
        lambda x, w, b: F.gelu(F.linear(x, w, b)), t(8192, 512), t(2048, 512), t(2048),
    ),
    "bilinear": lambda t: (F.bilinear, t(2048, 64), t(2048, 64), t(64, 64, 64), t(64)),
    "conv1d/plain": _conv((16, 128, 2048), (256, 128, 3), padding=1),
    "conv1d/stride": _conv((16, 128, 2048), (256, 128, 5), stride=2, padding=2),
    "conv1d/dilated": _conv((16, 128, 2048), (128, 128, 3), dilation=8, padding=8),
    "conv1d/depthwise": _conv((16, 256, 2048), (256, 1, 7), groups=256, padding=3),
    "conv1d/one": _conv((8, 1, 64000), (64, 1, 10), stride=5),
    "conv2d/3x3": _conv((16, 64, 56, 56), (128, 64, 3, 3), padding=1),
    "conv2d/1x1": _conv((16, 128, 56, 56), (256, 128, 1, 1)),
    "conv2d/stride": _conv((16, 64, 112, 112), (128, 64, 3, 3), stride=2, padding=1),
    "conv2d/7x7": _conv((16, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3),
    "conv2d/patches": _conv((16, 3, 224, 224), (768, 3, 16, 16), stride=16),
    "conv2d/depthwise": _conv((16, 192, 56, 56), (192, 1, 3, 3), groups=192, padding=1),
    "conv2d/groups": _conv((16, 128, 56, 56), (128, 4, 3, 3), groups=32, padding=1),
    "conv2d/dilated": _conv((8, 128, 64, 64), (128, 128, 3, 3), dilation=4, padding=4),
    "conv2d/same": _conv((8, 64, 64, 64), (64, 64, 4, 4), padding="same"),
    "conv2d/small_image": _conv((64, 512, 7, 7), (512, 512, 3, 3), padding=1),
    "conv2d/one_image": _conv((1, 64, 256, 256), (64, 64, 3, 3), padding=1),
    "conv2d/channels_last": _conv_last((16, 64, 56, 56), (128, 64, 3, 3), padding=1),
    "conv2d/channels_last_1x1": _conv_last((16, 128, 56, 56), (256, 128, 1, 1)),
    "conv2d/channels_last_input": lambda t: (
        lambda x, w: F.conv2d(x, w, padding=1), t.last(16, 64, 56, 56), t(128, 64, 3, 3),
    ),
    "conv2d/channels_last_depthwise": _conv_last(
        (16, 192, 56, 56), (192, 1, 7, 7), groups=192, padding=3
    ),
    "conv3d/plain": _conv((2, 16, 16, 64, 64), (32, 16, 3, 3, 3), padding=1),
    "conv3d/patches": _conv((2, 3, 16, 112, 112), (384, 3, 2, 16, 16), stride=(2, 16, 16)),
    "conv_transpose1d": _transposed((16, 256, 512), (256, 128, 4), stride=2, padding=1),
    "conv_transpose2d/2x2": _transposed((16, 128, 32, 32), (128, 64, 2, 2), stride=2),
    "conv_transpose2d/4x4": _transposed((16, 128, 32, 32), (128, 64, 4, 4), stride=2, padding=1),
    "conv_transpose3d": _transposed((2, 32, 8, 32, 32), (32, 16, 2, 2, 2), stride=2),
    "batch_norm/train": _module(lambda: nn.BatchNorm2d(64), 16, 64, 64, 64),
    "batch_norm/eval": _module(lambda: nn.BatchNorm2d(64).eval(), 16, 64, 64, 64),
    "batch_norm/1d": _module(lambda: nn.BatchNorm1d(512), 8192, 512),
    "batch_norm/3d": _module(lambda: nn.BatchNorm3d(32), 2, 32, 16, 64, 64),
    "batch_norm/channels_last": lambda t: (t.module(nn.BatchNorm2d(64)), t.last(16, 64, 64, 64)),
    "batch_norm/float32_weights": lambda t: (
        t.module(nn.BatchNorm2d(64), keeps_dtype=True), t(16, 64, 64, 64),
    ),
    "layer_norm/last": _module(lambda: nn.LayerNorm(512), 64, 128, 512),
    "layer_norm/no_affine": _module(lambda: nn.LayerNorm(512, elementwise_affine=False), 64, 128, 512),
    "layer_norm/image": _module(lambda: nn.LayerNorm((64, 32, 32)), 64, 64, 32, 32),
    "layer_norm/permuted": lambda t: (
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b),
        t(16, 96, 56, 56), t(96), t(96),
    ),
    "layer_norm/narrow": _module(lambda: nn.LayerNorm(64), 65536, 64),
    "group_norm": _module(lambda: nn.GroupNorm(32, 128), 16, 128, 48, 48),
    "group_norm/channels_last": lambda t: (t.module(nn.GroupNorm(32, 128)), t.last(16, 128, 48, 48)),
    "instance_norm": _module(lambda: nn.InstanceNorm2d(64), 16, 64, 64, 64),
    "instance_norm/affine": _module(
        lambda: nn.InstanceNorm2d(64, affine=True, track_running_stats=True), 16, 64, 64, 64
    ),
    "rms_norm": _module(lambda: nn.RMSNorm(512), 64, 128, 512),
    "local_response_norm": _module(lambda: nn.LocalResponseNorm(5), 16, 64, 56, 56),
    "normalize": lambda t: (lambda x: F.normalize(x, dim=-1), t(8192, 512)),
    "normalize/p1": lambda t: (lambda x: F.normalize(x, p=1.0, dim=1), t(64, 512, 128)),
    "dropout": lambda t: (lambda x: F.dropout(x, 0.1, True), t(64, 128, 512)),
    "dropout/eval": lambda t: (lambda x: F.dropout(x, 0.1, False), t(64, 128, 512)),
    "dropout2d": lambda t: (lambda x: F.dropout2d(x, 0.1, True), t(16, 64, 64, 64)),
    "alpha_dropout": lambda t: (lambda x: F.alpha_dropout(x, 0.1, True), t(64, 128, 512)),
    "attention/plain": _attention((8, 8, 512, 64)),
    "attention/causal": _attention((8, 8, 512, 64), is_causal=True),
    "attention/dropout": _attention((8, 8, 512, 64), dropout_p=0.1),
    "attention/keys": _attention((8, 8, 256, 64), keys=1024),
    "attention/odd_width": _attention((8, 8, 512, 60)),
    "attention/wide": _attention((4, 8, 512, 256)),
    "attention/wide_128": _attention((4, 8, 512, 128), is_causal=True),
    "attention/odd_length": _attention((8, 8, 197, 64)),
    "attention/one_query": _attention((32, 8, 1, 64), keys=1024),
    "attention/scale": _attention((8, 8, 512, 64), scale=0.5),
    "attention/mask_bool": _masked_attention("bool"),
    "attention/mask_row": _masked_attention("row"),
    "attention/mask_float": _masked_attention("float"),
    "attention/mask_trained": _masked_attention("trained"),
    "attention/grouped": lambda t: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        t(4, 16, 512, 64), t(4, 4, 512, 64), t(4, 4, 512, 64),
    ),
    "attention/grouped_causal": lambda t: (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        t(4, 16, 512, 64), t(4, 4, 512, 64), t(4, 4, 512, 64),
    ),
    "attention/transposed": lambda t: (
        lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        ),
        t(8, 512, 8, 64), t(8, 512, 8, 64), t(8, 512, 8, 64),
    ),
    "attention/packed_projection": lambda t: (
        lambda x: F.scaled_dot_product_attention(
            *(part.view(8, 512, 8, 64).transpose(1, 2) for part in x.chunk(3, -1))
        ),
        t(8, 512, 1536),
    ),
    "attention/three_dimensions": lambda t: (
        F.scaled_dot_product_attention, t(32, 512, 64), t(32, 512, 64), t(32, 512, 64),
    ),
    "attention/by_hand": lambda t: (
        lambda q, k, v: ((q @ k.mT) / 8.0).softmax(-1) @ v,
        t(8, 8, 512, 64), t(8, 8, 512, 64), t(8, 8, 512, 64),
    ),
    "attention/by_hand_masked": lambda t: (
        lambda q, k, v: (q @ k.mT * 0.125)
        .masked_fill(torch.ones(512, 512, device=q.device).tril() == 0, float("-inf"))
        .softmax(-1) @ v,
        t(8, 8, 512, 64), t(8, 8, 512, 64), t(8, 8, 512, 64),
    ),
    "multihead/no_weights": _multihead(need_weights=False),
    "multihead/weights": _multihead(need_weights=True),
    "multihead/all_weights": _multihead(average_attn_weights=False),
    "encoder_layer/train": _encoder(False, dropout=0.1),
    "encoder_layer/no_dropout": _encoder(False, dropout=0.0, norm_first=True, activation="gelu"),
    "encoder_layer/eval": _encoder(True),
    "decoder_layer": _decoder,
    "lstm": _module(lambda: nn.LSTM(256, 256), 128, 32, 256),
    "lstm/two_layers": _module(lambda: nn.LSTM(256, 256, 2, dropout=0.2), 128, 32, 256),
    "lstm/both_ways": _module(lambda: nn.LSTM(256, 256, bidirectional=True), 128, 32, 256),
    "lstm/batch_first": _module(lambda: nn.LSTM(256, 256, batch_first=True), 32, 128, 256),
    "lstm/projected": _module(lambda: nn.LSTM(256, 256, proj_size=64), 128, 32, 256),
    "lstm/packed": _packed(lambda: nn.LSTM(256, 256, batch_first=True)),
    "gru": _module(lambda: nn.GRU(256, 256), 128, 32, 256),
    "gru/two_layers": _module(lambda: nn.GRU(256, 256, 2), 128, 32, 256),
    "rnn": _module(lambda: nn.RNN(256, 256), 128, 32, 256),
    "lstm_cell": _module(lambda: nn.LSTMCell(512, 512), 2048, 512),
    "gru_cell": _module(lambda: nn.GRUCell(512, 512), 2048, 512),
    "rnn_cell": _module(lambda: nn.RNNCell(512, 512), 2048, 512),
    "embedding": _embedding(),
    "embedding/padded": _embedding(padding_idx=0),
    "embedding/by_frequency": _embedding(scale_grad_by_freq=True),
    "embedding/sparse": _embedding(sparse=True),
    "embedding/few": lambda t: (F.embedding, t.whole(512, 64), t(512, 4096)),
    "embedding_bag/sum": _bag("sum"),
    "embedding_bag/mean": _bag("mean"),
    "embedding_bag/max": _bag("max"),
    "embedding_bag/weighted": _bag("sum", is_weighted=True),
    "embedding_bag/offsets": _bag_with_offsets,
    "one_hot": lambda t: (lambda i: F.one_hot(i, 512), t.whole(512, 8192)),
    "cross_entropy": _class_loss(F.cross_entropy),
    "cross_entropy/smoothed": _class_loss(F.cross_entropy, label_smoothing=0.1),
    "cross_entropy/ignored": _class_loss(F.cross_entropy, ignore_index=5),
    "cross_entropy/none": _class_loss(F.cross_entropy, reduction="none"),
    "cross_entropy/weighted": lambda t: (
        lambda x, y: F.cross_entropy(x, y, t.unit(1000).detach()), t(4096, 1000), t.whole(1000, 4096),
    ),
    "cross_entropy/shares": lambda t: (
        lambda x, y: F.cross_entropy(x, y.softmax(-1)), t(4096, 1000), t.plain(4096, 1000),
    ),
    "cross_entropy/vocabulary": lambda t: (F.cross_entropy, t(512, 32000), t.whole(32000, 512)),
    "cross_entropy/image": lambda t: (F.cross_entropy, t(8, 21, 128, 128), t.whole(21, 8, 128, 128)),
    "cross_entropy/float": lambda t: (
        lambda x, y: F.cross_entropy(x[:, :-1].float().reshape(-1, 8000), y),
        t(4, 257, 8000), t.whole(8000, 1024),
    ),
    "nll_loss": lambda t: (
        lambda x, y: F.nll_loss(x.log_softmax(-1), y), t(4096, 1000), t.whole(1000, 4096),
    ),
    "nll_loss/image": lambda t: (
        lambda x, y: F.nll_loss(x.log_softmax(1), y), t(8, 21, 128, 128), t.whole(21, 8, 128, 128),
    ),
    "mse_loss": _pair_loss(F.mse_loss),
    "mse_loss/sum": _pair_loss(F.mse_loss, reduction="sum"),
    "mse_loss/none": _pair_loss(F.mse_loss, reduction="none"),
    "l1_loss": _pair_loss(F.l1_loss),
    "smooth_l1_loss": _pair_loss(F.smooth_l1_loss),
    "huber_loss": _pair_loss(F.huber_loss, delta=0.5),
    "kl_div": lambda t: (
        lambda x, y: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"),
        t(4096, 512), t.unit(4096, 512).detach(),
    ),
    "kl_div/log_target": lambda t: (
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
        t(4096, 512), t.plain(4096, 512),
    ),
    "bce_with_logits": lambda t: (
        F.binary_cross_entropy_with_logits, t(4096, 512), t.unit(4096, 512).detach(),
    ),
    "bce_with_logits/weighted": lambda t: (
        lambda x, y: F.binary_cross_entropy_with_logits(
            x, y, pos_weight=torch.ones(512, device=x.device, dtype=x.dtype)
        ),
        t(4096, 512), t.unit(4096, 512).detach(),
    ),
    "binary_cross_entropy": lambda t: (
        F.binary_cross_entropy, t.unit(4096, 512), t.unit(4096, 512).detach(),
    ),
    "cosine_similarity": lambda t: (
        lambda x, y: F.cosine_similarity(x, y, dim=-1), t(8192, 512), t(8192, 512),
    ),
    "cosine_embedding_loss": lambda t: (
        lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(8192, device=x.device)),
        t(8192, 256), t(8192, 256),
    ),
    "triplet_margin_loss": lambda t: (
        F.triplet_margin_loss, t(8192, 256), t(8192, 256), t(8192, 256),
    ),
    "margin_ranking_loss": lambda t: (
        lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x)), t(1000000), t(1000000),
    ),
    "hinge_embedding_loss": _pair_loss(F.hinge_embedding_loss),
    "soft_margin_loss": lambda t: (
        lambda x, y: F.soft_margin_loss(x, y.sign()), t(4096, 512), t.plain(4096, 512),
    ),
    "gaussian_nll_loss": lambda t: (
        lambda x, y, v: F.gaussian_nll_loss(x, y, v),
        t(4096, 512), t.plain(4096, 512), t.unit(4096, 512),
    ),
    "poisson_nll_loss": lambda t: (F.poisson_nll_loss, t(4096, 512), t.unit(4096, 512).detach()),
    "multi_margin_loss": _class_loss(F.multi_margin_loss),
    "multilabel_soft_margin_loss": lambda t: (
        F.multilabel_soft_margin_loss, t(4096, 512), t.unit(4096, 512).detach(),
    ),
    "max_pool1d": lambda t: (lambda x: F.max_pool1d(x, 2), t(16, 128, 4096)),
    "max_pool2d": lambda t: (lambda x: F.max_pool2d(x, 2), t(16, 64, 112, 112)),
    "max_pool2d/overlapping": lambda t: (lambda x: F.max_pool2d(x, 3, 2, 1), t(16, 64, 112, 112)),
    "max_pool2d/channels_last": lambda t: (lambda x: F.max_pool2d(x, 2), t.last(16, 64, 112, 112)),
    "max_pool2d/positions": lambda t: (
        lambda x: F.max_pool2d(x, 2, return_indices=True), t(16, 64, 112, 112),
    ),
    "max_pool3d": lambda t: (lambda x: F.max_pool3d(x, 2), t(2, 32, 16, 64, 64)),
    "max_unpool2d": lambda t: (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), t(16, 64, 64, 64),
    ),
    "avg_pool1d": lambda t: (lambda x: F.avg_pool1d(x, 4), t(16, 128, 4096)),
    "avg_pool2d": lambda t: (lambda x: F.avg_pool2d(x, 2), t(16, 64, 112, 112)),
    "avg_pool3d": lambda t: (lambda x: F.avg_pool3d(x, 2), t(2, 32, 16, 64, 64)),
    "adaptive_avg_pool2d/one": lambda t: (lambda x: F.adaptive_avg_pool2d(x, 1), t(16, 512, 28, 28)),
    "adaptive_avg_pool2d/seven": lambda t: (lambda x: F.adaptive_avg_pool2d(x, 7), t(16, 512, 28, 28)),
    "adaptive_max_pool2d": lambda t: (lambda x: F.adaptive_max_pool2d(x, 7), t(16, 512, 28, 28)),
    "adaptive_avg_pool1d": lambda t: (lambda x: F.adaptive_avg_pool1d(x, 16), t(16, 512, 512)),
    "lp_pool2d": lambda t: (lambda x: F.lp_pool2d(x, 2.0, 2), t(16, 64, 64, 64)),
    "interpolate/nearest": _resize((8, 64, 48, 48), scale_factor=2),
    "interpolate/bilinear": _resize((8, 64, 48, 48), scale_factor=2, mode="bilinear"),
    "interpolate/bicubic": _resize((8, 64, 48, 48), scale_factor=2, mode="bicubic"),
    "interpolate/antialias": _resize((8, 64, 96, 96), size=48, mode="bilinear", antialias=True),
    "interpolate/area": _resize((8, 64, 96, 96), size=48, mode="area"),
    "interpolate/linear": _resize((16, 128, 1024), scale_factor=2, mode="linear"),
    "interpolate/trilinear": _resize((2, 16, 16, 32, 32), scale_factor=2, mode="trilinear"),
    "interpolate/smaller": _resize((8, 64, 96, 96), scale_factor=0.5, mode="bilinear"),
    "pixel_shuffle": lambda t: (lambda x: F.pixel_shuffle(x, 2), t(16, 64, 64, 64)),
    "pixel_unshuffle": lambda t: (lambda x: F.pixel_unshuffle(x, 2), t(16, 16, 128, 128)),
    "channel_shuffle": lambda t: (lambda x: F.channel_shuffle(x, 4), t(16, 64, 64, 64)),
    "pad/constant": _pad("constant", 1, 1, 1, 1),
    "pad/reflect": _pad("reflect", 2, 2, 2, 2),
    "pad/replicate": _pad("replicate", 2, 2, 2, 2),
    "pad/circular": _pad("circular", 2, 2, 2, 2),
    "fold": lambda t: (
        lambda x: F.fold(F.unfold(x, 3, padding=1), (64, 64), 3, padding=1), t(8, 16, 64, 64),
    ),
    "unfold": lambda t: (lambda x: F.unfold(x, 3, padding=1), t(8, 16, 64, 64)),
    "grid_sample": lambda t: (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), t(8, 32, 96, 96), t(8, 96, 96, 2),
    ),
    "affine_grid": lambda t: (
        lambda w: F.affine_grid(w, [32, 3, 224, 224], align_corners=False), t(32, 2, 3),
    ),
    "scaled_gumbel": lambda t: (lambda x: F.gumbel_softmax(x, hard=True), t(4096, 512)),
    "weight_norm": _weight_norm(torch.nn.utils.parametrizations.weight_norm),
    "spectral_norm": _weight_norm(torch.nn.utils.parametrizations.spectral_norm),
}  # fmt: skip

SINGLE: dict[str, Build] = {
    "ctc_loss": _ctc,
    "adaptive_log_softmax": _adaptive_loss,
    "cdist": lambda t: (torch.cdist, t(1024, 64), t(2048, 64)),
    "cdist/p1": lambda t: (lambda x, y: torch.cdist(x, y, p=1.0), t(1024, 64), t(2048, 64)),
    "cdist/batched": lambda t: (torch.cdist, t(8, 512, 3), t(8, 512, 3)),
    "pdist": lambda t: (F.pdist, t(1500, 64)),
    "multilabel_margin_loss": lambda t: (
        F.multilabel_margin_loss, t(4096, 256), t.whole(256, 4096, 256),
    ),
    "fractional_max_pool2d": lambda t: (
        lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.5)), t(16, 64, 64, 64),
    ),
    "linear/double": lambda t: (
        F.linear, t(2048, 512, dtype=torch.float64), t(512, 512, dtype=torch.float64),
    ),
    "attention/double": lambda t: (
        F.scaled_dot_product_attention, *(t(4, 8, 256, 64, dtype=torch.float64) for _ in range(3)),
    ),
}  # fmt: skip

HALF: dict[str, Build] = {
    "linear/halves": lambda t: (F.linear, t(64, 128, 512), t(2048, 512), t(2048)),
    "layer_norm/float32_weights": lambda t: (
        lambda x, w, b: F.layer_norm(x.float(), (512,), w, b).to(x.dtype),
        t(64, 128, 512), t(512, dtype=torch.float32), t(512, dtype=torch.float32),
    ),
    "softmax/float32": lambda t: (
        lambda x: F.softmax(x, -1, dtype=torch.float32).to(x.dtype), t(8, 8, 256, 512),
    ),
    "attention/halves": _attention((8, 8, 512, 64), is_causal=True),
    "attention/halves_masked": _masked_attention("bool"),
    "conv2d/halves": _conv((16, 64, 56, 56), (128, 64, 3, 3), padding=1),
}  # fmt: skip
