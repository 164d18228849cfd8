"""What kernels ask for beyond their results, over shapes (FILE.json)."""
import itertools, json, sys
from functools import partial
import torch
import torch.nn.functional as F
from torch import nn
OUT = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
MB = 1 << 20
def peak_of(function, warm=1):
    for _ in range(warm):
        r = function(); del r
    torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    r = function()
    s = torch.cuda.memory_stats()
    held = s["requested_bytes.all.current"] - before
    peak = s["requested_bytes.all.peak"] - before
    del r
    return peak - held, held
def requests_of(function):
    """Sizes of every request that one call makes, in order with frees (negative)."""
    r = function(); del r
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=4000)
    r = function()
    snap = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    del r
    return [e["size"] if e["action"] == "alloc" else -e["size"] for e in snap if e["action"] in ("alloc", "free_requested")]
def note(section, row):
    OUT.setdefault(section, []).append(row)
def guarded(section):
    def wrap(f):
        try: f()
        except Exception as e: note(section, {"error": f"{type(e).__name__}: {e}"[:300]})
        torch.cuda.empty_cache()
        json.dump(OUT, open(sys.argv[1], "w"))
    return wrap
def attempt(section, row, function):
    try: row["requests"] = requests_of(function)
    except Exception as e: row["error"] = f"{type(e).__name__}: {e}"[:160]
    note(section, row)

@guarded("rnn")
def _():
    for kind, dtype, units, layers, both, dropout, packed, steps, batch, inputs in itertools.product(
        (nn.LSTM, nn.GRU), (torch.float32, torch.bfloat16), (256, 512), (1, 2), (False, True), (0.0, 0.3), (False, True), (64, 190), (24, 64), (256,)):
        if (dropout and layers == 1) or (kind is nn.GRU and dtype is torch.bfloat16): continue
        layer = kind(inputs, units, layers, bidirectional=both, dropout=dropout).cuda().to(dtype)
        x = torch.randn(steps, batch, inputs, device="cuda", dtype=dtype, requires_grad=True)
        lengths = torch.linspace(steps, steps // 4, batch).long()
        arg = nn.utils.rnn.pack_padded_sequence(x, lengths) if packed else x
        def fwd():
            out = layer(arg)
            return out
        row = {"kind": kind.__name__, "dtype": str(dtype), "units": units, "layers": layers, "both": both, "dropout": dropout, "packed": packed, "steps": steps, "batch": batch, "inputs": inputs, "rows": int(lengths.sum()) if packed else steps * batch}
        try:
            row["forward"] = requests_of(fwd)
            def bwd():
                o = fwd()[0]
                o = o.data if packed else o
                torch.cuda.memory._record_memory_history(None) if False else None
                return o.sum().backward()
            row["both_ways"] = requests_of(bwd)
            with torch.no_grad():
                row["no_grad"] = requests_of(fwd)
        except Exception as e: row["error"] = str(e)[:200]
        for p in layer.parameters(): p.grad = None
        x.grad = None
        note("rnn", row)

@guarded("conv")
def _():
    cases = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for batch, ci, co, size, k, s, d, g in [
            (32, 3, 64, 64, 3, 1, 1, 1), (32, 64, 64, 64, 3, 1, 1, 1), (32, 64, 64, 64, 3, 2, 1, 1), (32, 128, 128, 32, 3, 1, 1, 1), (32, 256, 128, 32, 3, 1, 1, 1), (32, 192, 64, 64, 3, 1, 1, 1),
            (16, 96, 96, 128, 3, 1, 1, 1), (16, 192, 192, 64, 3, 1, 1, 1), (64, 64, 128, 32, 4, 2, 1, 1), (64, 128, 256, 16, 4, 2, 1, 1), (96, 256, 512, 8, 4, 2, 1, 1),
            (8, 960, 256, 26, 3, 1, 12, 1), (8, 960, 256, 26, 3, 1, 24, 1), (8, 72, 72, 104, 5, 2, 1, 72), (8, 240, 240, 52, 3, 1, 1, 240), (8, 960, 160, 26, 1, 1, 1, 1), (8, 16, 64, 208, 1, 1, 1, 1),
            (32, 256, 256, 28, 3, 1, 1, 32), (6, 32, 32, 256, 3, 1, 1, 1), (6, 128, 64, 128, 3, 1, 1, 1), (6, 512, 256, 32, 3, 1, 1, 1), (96, 64, 64, 48, 3, 1, 1, 1), (96, 128, 128, 24, 3, 1, 1, 1), (96, 256, 256, 12, 3, 1, 1, 1), (96, 512, 512, 6, 3, 1, 1, 1),
            (96, 3, 64, 192, 7, 2, 1, 1), (4, 256, 256, 80, 3, 1, 1, 1), (4, 256, 180, 80, 3, 1, 1, 1), (256, 3, 32, 64, 3, 2, 1, 1), (256, 32, 32, 31, 3, 1, 1, 1)]:
            for last in (False, True):
                cases.append((dtype, batch, ci, co, size, k, s, d, g, last))
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for dtype, batch, ci, co, size, k, s, d, g, last in cases:
            if benchmark and (last or dtype is torch.float16): continue
            form = torch.channels_last if last else torch.contiguous_format
            x = torch.randn(batch, ci, size, size, device="cuda", dtype=dtype).to(memory_format=form)
            w = torch.randn(co, ci // g, k, k, device="cuda", dtype=dtype).to(memory_format=form)
            o = [[s] * 2, [d * (k // 2)] * 2, [d] * 2, False, [0, 0], g]
            row = {"benchmark": benchmark, "dtype": str(dtype), "x": x.nbytes, "w": w.nbytes, "shape": [batch, ci, co, size, k, s, d, g], "last": last}
            try:
                f = lambda: torch.ops.aten.convolution(x, w, None, *o)
                torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()
                y = f(); row["first"] = torch.cuda.max_memory_allocated() - before - y.nbytes
                row["y"] = y.nbytes
                gr = torch.randn_like(y)
                b = torch.ops.aten.convolution_backward
                torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()
                b(gr, x, w, None, *o, [True, True, False]); row["first_backward"] = torch.cuda.max_memory_allocated() - before
                row["forward"] = requests_of(f)
                row["backward"] = requests_of(lambda: b(gr, x, w, None, *o, [True, True, False]))
            except Exception as e: row["error"] = str(e)[:160]
            note("conv", row)
    torch.backends.cudnn.benchmark = False

@guarded("conv1d3d")
def _():
    for dtype in (torch.float32, torch.float16):
        for dims, batch, ci, co, size, k, s, d in [(1, 8, 96, 192, 16000, 2, 1, 1), (1, 8, 96, 192, 16512, 2, 1, 512), (1, 8, 96, 96, 16000, 1, 1, 1), (1, 8, 256, 256, 15999, 1, 1, 1), (1, 6, 80, 512, 3000, 3, 1, 1), (1, 6, 512, 512, 3000, 3, 2, 1), (3, 2, 16, 32, 48, 3, 1, 1), (3, 2, 32, 32, 48, 3, 2, 1)]:
            x = torch.randn(batch, ci, *[size] * dims, device="cuda", dtype=dtype)
            w = torch.randn(co, ci, *[k] * dims, device="cuda", dtype=dtype)
            o = [[s] * dims, [0] * dims, [d] * dims, False, [0] * dims, 1]
            f = lambda: torch.ops.aten.convolution(x, w, None, *o)
            row = {"dtype": str(dtype), "dims": dims, "shape": [batch, ci, co, size, k, s, d], "x": x.nbytes, "w": w.nbytes}
            try:
                y = f(); row["y"] = y.nbytes; gr = torch.randn_like(y)
                row["forward"] = requests_of(f)
                row["backward"] = requests_of(lambda: torch.ops.aten.convolution_backward(gr, x, w, None, *o, [True, True, False]))
            except Exception as e: row["error"] = str(e)[:160]
            note("conv1d3d", row)

@guarded("attention")
def _():
    for dtype, (b, h, q, k, w), causal, mask, kvh in itertools.product((torch.float32, torch.bfloat16), ((4, 12, 512, 512, 64), (2, 16, 300, 300, 64), (8, 8, 96, 377, 64), (4, 8, 256, 256, 80), (2, 4, 1024, 1024, 32), (3, 20, 1536, 1536, 64)), (False, True), (None, "bool", "float"), (1, 4)):
        if (causal and mask) or h % kvh: continue
        Q = torch.randn(b, h, q, w, device="cuda", dtype=dtype, requires_grad=True)
        K, V = (torch.randn(b, h // kvh, k, w, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
        M = None if mask is None else (torch.rand(b, 1, q, k, device="cuda") > 0.1)
        if mask == "float": M = torch.zeros(b, 1, q, k, device="cuda", dtype=dtype).masked_fill(~M, -1e9)
        f = lambda: F.scaled_dot_product_attention(Q, K, V, attn_mask=M, is_causal=causal, enable_gqa=kvh > 1)
        row = {"dtype": str(dtype), "shape": [b, h, q, k, w], "causal": causal, "mask": mask, "group": kvh}
        def both():
            return torch.autograd.grad(f().sum(), (Q, K, V))
        attempt("attention", row, f)
        attempt("attention", {**row, "backward": True}, both)

@guarded("operators")
def _():
    d = "cuda"
    x = torch.randn(512, 8192, device=d); big = torch.randn(8, 64, 128, 128, device=d); h = x.bfloat16()
    ids = torch.randint(0, 30000, (64, 512), device=d); emb = torch.randn(30000, 256, device=d, requires_grad=True)
    probs = x.softmax(-1)
    cases = {
        "_safe_softmax": lambda: torch.ops.aten._safe_softmax(x, -1), "logsumexp": lambda: x.logsumexp(-1), "bce": lambda: F.binary_cross_entropy_with_logits(x, probs), "cdist": lambda: torch.cdist(x, x),
        "sort": lambda: x.sort(-1), "sort_flat": lambda: x.flatten().sort(), "topk": lambda: x.topk(50), "topk_big": lambda: x[:, :].topk(2000), "argsort": lambda: ids.flatten().argsort(), "cumsum": lambda: x.cumsum(-1), "cumsum_flat": lambda: x.flatten().cumsum(0),
        "nonzero": lambda: (x > 0).nonzero(), "masked_select": lambda: x.masked_select(x > 0), "index_mask": lambda: x[x > 0], "unique": lambda: ids.unique(), "bincount": lambda: ids.flatten().bincount(), "multinomial": lambda: torch.multinomial(probs, 1), "multinomial_many": lambda: torch.multinomial(probs, 100),
        "randperm": lambda: torch.randperm(100000, device=d), "randperm_large": lambda: torch.randperm(5000000, device=d), "median": lambda: x.median(), "median_dim": lambda: x.median(-1), "kthvalue": lambda: x.kthvalue(5), "quantile": lambda: x[:, :1000].quantile(0.5), "var_mean": lambda: torch.var_mean(x, dim=0),
        "norm_all": lambda: x.norm(), "norm_p": lambda: x.norm(dim=-1), "layer_norm": lambda: F.layer_norm(x, (8192,)), "layer_norm_half": lambda: F.layer_norm(h, (8192,)), "group_norm": lambda: F.group_norm(big, 8), "batch_norm": lambda: F.batch_norm(big, None, None, training=True), "instance_norm": lambda: F.instance_norm(big),
        "rms_norm": lambda: F.rms_norm(x, (8192,)), "softmax_half": lambda: h.softmax(-1), "log_softmax_f32": lambda: h.log_softmax(-1, dtype=torch.float32), "cross_entropy": lambda: F.cross_entropy(x, ids[0]), "cross_entropy_smooth": lambda: F.cross_entropy(x, ids[0], label_smoothing=0.1),
        "dropout": lambda: F.dropout(x, 0.1), "gelu": lambda: F.gelu(x), "interpolate": lambda: F.interpolate(big, scale_factor=2), "bilinear": lambda: F.interpolate(big, scale_factor=2, mode="bilinear"), "max_pool": lambda: F.max_pool2d(big, 2), "adaptive": lambda: F.adaptive_avg_pool2d(big, 1), "grid_sample": lambda: F.grid_sample(big, torch.zeros(8, 128, 128, 2, device=d)),
        "index_add": lambda: torch.zeros(30000, 256, device=d).index_add(0, ids.flatten(), torch.ones(32768, 256, device=d)), "scatter_add": lambda: torch.zeros(30000, 256, device=d).scatter_add(0, ids.flatten()[:, None].expand(-1, 256), torch.ones(32768, 256, device=d)), "scatter_reduce": lambda: torch.zeros(30000, 4, device=d).scatter_reduce(0, ids.flatten()[:, None].expand(-1, 4), torch.ones(32768, 4, device=d), "amax"),
        "index_put": lambda: torch.zeros(30000, 256, device=d).index_put((ids.flatten(),), torch.ones(32768, 256, device=d), accumulate=True), "index_select": lambda: x.index_select(0, ids[0] % 512), "gather": lambda: x.gather(1, ids[:, :].flatten()[:512, None] % 8192), "cat": lambda: torch.cat([x, x]), "where": lambda: torch.where(x > 0, x, 0.0), "einsum": lambda: torch.einsum("ij,kj->ik", x, x),
        "matmul_bias": lambda: F.linear(x, torch.ones(1024, 8192, device=d), torch.ones(1024, device=d)), "bmm": lambda: torch.bmm(big[:, 0], big[:, 1]), "fft": lambda: torch.fft.rfft(x), "stft": lambda: torch.stft(x[:8].flatten(1), 512, return_complex=True, window=torch.ones(512, device=d)), "all": lambda: (x > 5).all(), "any_dim": lambda: (x > 5).any(-1), "sum_all": lambda: x.sum(), "sum_bf16": lambda: h.sum(), "mean_0": lambda: x.mean(0), "amax": lambda: x.amax(), "argmax": lambda: x.argmax(-1), "clip_grad": lambda: torch.nn.utils.clip_grad_norm_([emb], 1.0), "eye": lambda: torch.eye(4000, device=d), "tril": lambda: torch.ones(1000, 1000, device=d).tril(), "weight_norm": lambda: torch._weight_norm(torch.ones(192, 96, 2, device=d), torch.ones(192, 1, 1, device=d), 0),
        "repeat_interleave": lambda: x.repeat_interleave(2, 0), "roll": lambda: x.roll(3, 0), "flip": lambda: x.flip(0), "bernoulli": lambda: torch.bernoulli(probs), "histc": lambda: x.histc(100), "searchsorted": lambda: torch.searchsorted(x.sort(-1).values, x), "embedding_bag": lambda: F.embedding_bag(ids, emb), "addcdiv": lambda: torch.addcdiv(x, x, x), "nan_to_num": lambda: x.nan_to_num(), "isinf": lambda: x.isinf(), "isfinite": lambda: x.isfinite(), "isnan": lambda: x.isnan(), "logcumsumexp": lambda: x.logcumsumexp(-1), "prod": lambda: x.prod(-1), "std": lambda: x.std(), "outer": lambda: torch.outer(x[0], x[1]),
        "cholesky": lambda: torch.linalg.cholesky(torch.eye(4000, device=d) * 2), "cholesky_solve": lambda: torch.cholesky_solve(torch.ones(4000, 1, device=d), torch.eye(4000, device=d)), "solve_triangular": lambda: torch.linalg.solve_triangular(torch.eye(4000, device=d), torch.ones(4000, 1000, device=d), upper=False), "cholesky_inverse": lambda: torch.cholesky_inverse(torch.eye(2000, device=d)), "batched_cholesky": lambda: torch.linalg.cholesky(torch.eye(200, device=d).expand(64, 200, 200) * 2), "slogdet": lambda: torch.linalg.slogdet(torch.eye(1000, device=d)), "svd": lambda: torch.linalg.svd(x[:200, :200]), "inv": lambda: torch.linalg.inv(torch.eye(1000, device=d)), "pinv": lambda: torch.linalg.pinv(x[:200, :100]), "lstsq": lambda: torch.linalg.lstsq(x[:400, :100], x[:400, :5]),
    }
    for name, f in cases.items():
        attempt("operators", {"operator": name}, f)
    def g(f, *ins):
        ins = [i.detach().requires_grad_() for i in ins]
        return lambda: torch.autograd.grad(f(*ins).float().sum(), ins)
    w = torch.ones(8192, device=d); wb = torch.ones(64, device=d)
    backs = {
        "embedding": g(lambda e: F.embedding(ids, e), emb), "embedding_small": g(lambda e: F.embedding(ids[:2], e), emb), "embedding_pad": g(lambda e: F.embedding(ids, e, padding_idx=0), emb), "embedding_bag": g(lambda e: F.embedding_bag(ids, e), emb), "layer_norm": g(lambda a, c, e: F.layer_norm(a, (8192,), c, e), x, w, w), "layer_norm_tall": g(lambda a, c, e: F.layer_norm(a.view(-1, 512), (512,), c, e), x, w[:512], w[:512]), "layer_norm_bf16": g(lambda a, c, e: F.layer_norm(a.view(-1, 512), (512,), c, e), h, h[0, :512], h[0, :512]), "rms_norm": g(lambda a, c: F.rms_norm(a.view(-1, 1024), (1024,), c), x, w[:1024]), "group_norm": g(lambda a, c, e: F.group_norm(a, 8, c, e), big, wb, wb), "batch_norm": g(lambda a, c, e: F.batch_norm(a, None, None, c, e, True), big, wb, wb), "instance_norm": g(lambda a, c, e: F.instance_norm(a, weight=c, bias=e), big, wb, wb),
        "bilinear": g(lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), big), "nearest": g(lambda a: F.interpolate(a, scale_factor=2), big), "max_pool": g(lambda a: F.max_pool2d(a, 2), big), "max_pool_overlap": g(lambda a: F.max_pool2d(a, 3, 2, 1), big), "index": g(lambda a: a[ids[0] % 512], x), "index_mask": g(lambda a: a[a > 0], x), "gather": g(lambda a: a.gather(1, ids[:, :8] .flatten()[:512, None] % 8192), x), "index_select": g(lambda a: a.index_select(0, ids[0] % 512), x), "topk": g(lambda a: a.topk(5)[0], x), "logsumexp": g(lambda a: a.logsumexp(-1), x), "bce": g(lambda a: F.binary_cross_entropy_with_logits(a, probs), x), "cross_entropy": g(lambda a: F.cross_entropy(a, ids[0]), x), "cross_entropy_smooth": g(lambda a: F.cross_entropy(a, ids[0], label_smoothing=0.1), x), "cdist": g(lambda a: torch.cdist(a, a), x), "softmax": g(lambda a: a.softmax(-1).square(), x), "gelu": g(F.gelu, x), "silu": g(F.silu, x), "norm": g(lambda a: a.norm(2, dim=1), x), "cumsum": g(lambda a: a.cumsum(-1), x), "cumprod": g(lambda a: a.cumprod(-1), x), "sort": g(lambda a: a.sort(-1)[0], x), "weight_norm": g(lambda a, c: torch._weight_norm(a, c, 0), torch.ones(192, 96, 2, device=d), torch.ones(192, 1, 1, device=d)), "grid_sample": g(lambda a: F.grid_sample(a, torch.zeros(8, 128, 128, 2, device=d)), big), "cholesky": g(lambda a: torch.linalg.cholesky(a), torch.eye(2000, device=d) * 2), "cholesky_solve": g(lambda a: torch.cholesky_solve(torch.ones(2000, 1, device=d), a), torch.eye(2000, device=d)), "conv_bias": g(lambda a, b: F.conv2d(a, torch.ones(32, 64, 3, 3, device=d), b), big, torch.ones(32, device=d)), "smooth_l1": g(lambda a: F.smooth_l1_loss(a, probs), x), "huber": g(lambda a: F.huber_loss(a, probs), x), "l1": g(lambda a: F.l1_loss(a, probs), x), "mse": g(lambda a: F.mse_loss(a, probs), x), "kl": g(lambda a: F.kl_div(a, probs), x), "dropout": g(lambda a: F.dropout(a, 0.1), x), "scatter_reduce": g(lambda a: torch.zeros(30000, 4, device=d).scatter_reduce(0, ids.flatten()[:, None].expand(-1, 4), a, "amax"), torch.ones(32768, 4, device=d)), "index_add": g(lambda a: torch.zeros(30000, 256, device=d).index_add(0, ids.flatten(), a), torch.ones(32768, 256, device=d)), "fft": g(lambda a: torch.fft.rfft(a).abs(), x), "pixel_shuffle": g(lambda a: F.pixel_shuffle(a, 2), big), "unfold": g(lambda a: F.unfold(a, 3), big[:, :8]), "std": g(lambda a: a.std(-1), x), "prod": g(lambda a: a.prod(-1), x), "amax": g(lambda a: a.amax(-1), x), "max": g(lambda a: a.max(), x),
    }
    for name, f in backs.items():
        attempt("backwards", {"operator": name}, f)
