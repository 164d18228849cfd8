"""T5 v1.1-base summarisation-like training: bucketed variable lengths, label smoothing, accumulation, Adafactor."""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor


def make_corpus(n, vocab, max_src, max_tgt, seed):
    g = torch.Generator().manual_seed(seed)
    docs = []
    for _ in range(n):
        ls = int(torch.randint(max_src // 4, max_src + 1, (1,), generator=g))
        lt = max(4, int(ls * max_tgt / max_src * (0.5 + 0.5 * torch.rand(1, generator=g).item())))
        src = torch.randint(2, vocab, (ls,), generator=g)
        docs.append((src, torch.cat([src[:lt - 1].flip(0), torch.tensor([1])])))
    return docs


def token_batches(docs, max_tokens, generator):
    """Sorts by source length and packs examples until the padded size would exceed max_tokens."""
    order = sorted(range(len(docs)), key=lambda i: len(docs[i][0]))
    batches, cur, longest = [], [], 0
    for i in order:
        new_longest = max(longest, len(docs[i][0]))
        if cur and new_longest * (len(cur) + 1) > max_tokens:
            batches.append(cur)
            cur, new_longest = [], len(docs[i][0])
        cur.append(i)
        longest = new_longest
    batches.append(cur)
    for b in torch.randperm(len(batches), generator=generator).tolist():
        src = torch.nn.utils.rnn.pad_sequence([docs[i][0] for i in batches[b]], batch_first=True)
        tgt = torch.nn.utils.rnn.pad_sequence([docs[i][1] for i in batches[b]], batch_first=True, padding_value=-100)
        yield src, tgt


def smoothed_nll(logits, labels, eps):
    logp = F.log_softmax(logits.float(), dim=-1)
    mask = labels.ne(-100)
    nll = -logp.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    uniform = -logp.mean(dim=-1)
    loss = (1 - eps) * nll + eps * uniform
    return (loss * mask).sum() / mask.sum(), (nll.detach() * mask).sum() / mask.sum()


@torch.no_grad()
def evaluate(model, docs, max_tokens, device):
    model.eval()
    nll_sum = n = 0.0
    for src, tgt in token_batches(docs, max_tokens, torch.Generator().manual_seed(0)):
        src, tgt = src.to(device), tgt.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(input_ids=src, attention_mask=src.ne(0), labels=tgt).logits
        count = tgt.ne(-100).sum().item()
        nll_sum += F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten(), ignore_index=-100).item() * count
        n += count
    model.train()
    return nll_sum / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--d-model", type=int, default=768)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--vocab", type=int, default=32128)
    p.add_argument("--max-src", type=int, default=768)
    p.add_argument("--max-tgt", type=int, default=192)
    p.add_argument("--docs", type=int, default=220)
    p.add_argument("--max-tokens", type=int, default=6144)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--smoothing", type=float, default=0.1)
    args = p.parse_args()
    torch.manual_seed(7)
    device = torch.device("cuda")

    cfg = T5Config(vocab_size=args.vocab, d_model=args.d_model, d_kv=64, d_ff=int(args.d_model * 8 / 3), num_layers=args.layers,
                   num_heads=args.d_model // 64, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                   decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    model = T5ForConditionalGeneration(cfg).to(device)
    opt = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False, warmup_init=False)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 3))
    train = make_corpus(args.docs, args.vocab, args.max_src, args.max_tgt, 1)
    valid = make_corpus(24, args.vocab, args.max_src, args.max_tgt, 2)

    best, step = float("inf"), 0
    path = os.path.join(tempfile.mkdtemp(), "best.pt")
    gen = torch.Generator().manual_seed(3)
    for epoch in range(2):
        pending, running = 0, 0.0
        for src, tgt in token_batches(train, args.max_tokens, gen):
            src, tgt = src.to(device), tgt.to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = model(input_ids=src, attention_mask=src.ne(0), labels=tgt, use_cache=False)
            loss, nll = smoothed_nll(out.logits, tgt, args.smoothing)
            (loss / args.accum).backward()
            running += nll.item()
            pending += 1
            if pending % args.accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
                step += 1
                print(f"epoch {epoch} step {step} nll {running / args.accum:.4f} shape {tuple(src.shape)}")
                running = 0.0
        val = evaluate(model, valid, args.max_tokens, device)
        print(f"epoch {epoch} valid nll {val:.4f}")
        if val < best:
            best = val
            torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, map_location=device))
    print(f"restored best: {evaluate(model, valid, args.max_tokens, device):.4f}")


if __name__ == "__main__":
    main()
