"""Trains a Speech2Text encoder-decoder on filter banks, then decodes with beam search."""
import argparse
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GenerationConfig, Speech2TextConfig, Speech2TextForConditionalGeneration


class FilterBanks(Dataset):
    """Utterances whose frames follow a random template of the spoken tokens."""

    def __init__(self, n, vocab, min_frames, max_frames, seed):
        g = torch.Generator().manual_seed(seed)
        self.templates = torch.randn(97, 80, generator=torch.Generator().manual_seed(0))
        self.items = []
        for _ in range(n):
            frames = int(torch.randint(min_frames, max_frames + 1, (1,), generator=g))
            tokens = torch.randint(4, vocab, (frames // 24,), generator=g)
            self.items.append((frames, tokens))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        frames, tokens = self.items[i]
        spread = torch.arange(frames) * len(tokens) // frames
        feats = self.templates[tokens[spread] % 97] + 0.3 * torch.randn(frames, 80)
        return feats, tokens


def collate(items):
    items = sorted(items, key=lambda x: -len(x[0]))
    t, u = len(items[0][0]), max(len(tok) for _, tok in items) + 1
    feats = torch.zeros(len(items), t, 80)
    mask = torch.zeros(len(items), t, dtype=torch.long)
    labels = torch.full((len(items), u), -100)
    for i, (f, tok) in enumerate(items):
        feats[i, :len(f)] = f
        mask[i, :len(f)] = 1
        labels[i, :len(tok)] = tok
        labels[i, len(tok)] = 2
    return feats, mask, labels


def spec_augment(feats, time_masks=2, width=40, freq_width=18):
    feats = feats.clone()
    for b in range(feats.shape[0]):
        for _ in range(time_masks):
            at = int(torch.randint(0, max(1, feats.shape[1] - width), (1,)))
            feats[b, at:at + width] = 0
        f = int(torch.randint(0, 80 - freq_width, (1,)))
        feats[b, :, f:f + freq_width] = 0
    return feats


def inverse_sqrt(warmup):
    return lambda s: min((s + 1) / warmup, (warmup / (s + 1)) ** 0.5)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = []
    for feats, mask, labels in loader:
        losses.append(model(input_features=feats.cuda(), attention_mask=mask.cuda(), labels=labels.cuda()).loss.item())
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def decode(model, loader, beams, length):
    model.eval()
    conf = GenerationConfig(num_beams=beams, min_new_tokens=length, max_new_tokens=length, do_sample=False,
                            decoder_start_token_id=2, eos_token_id=2, pad_token_id=1, bos_token_id=0, length_penalty=1.0)
    hyps = []
    for feats, mask, _ in loader:
        out = model.generate(input_features=feats.cuda(), attention_mask=mask.cuda(), generation_config=conf)
        hyps += out.cpu().tolist()
    return hyps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=9000)
    p.add_argument("--dim", type=int, default=384)
    p.add_argument("--encoder-layers", type=int, default=10)
    p.add_argument("--decoder-layers", type=int, default=5)
    p.add_argument("--frames", type=int, nargs=2, default=[500, 1400])
    p.add_argument("--batch", type=int, default=28)
    p.add_argument("--utterances", type=int, default=28 * 36)
    p.add_argument("--beams", type=int, default=5)
    p.add_argument("--decode-length", type=int, default=48)
    args = p.parse_args()
    torch.manual_seed(17)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True

    cfg = Speech2TextConfig(
        vocab_size=args.vocab, d_model=args.dim, encoder_layers=args.encoder_layers, decoder_layers=args.decoder_layers,
        encoder_ffn_dim=4 * args.dim, decoder_ffn_dim=4 * args.dim, encoder_attention_heads=6, decoder_attention_heads=6,
        max_source_positions=2000, max_target_positions=256, conv_channels=768, input_feat_per_channel=80,
        encoder_layerdrop=0.0, decoder_layerdrop=0.0, dropout=0.1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2)
    model = Speech2TextForConditionalGeneration(cfg).cuda().train()
    print("parameters", sum(t.numel() for t in model.parameters()))

    train = DataLoader(FilterBanks(args.utterances, args.vocab, *args.frames, seed=1), args.batch, shuffle=True,
                       collate_fn=collate, num_workers=2, drop_last=True)
    valid_set = FilterBanks(args.batch * 2, args.vocab, *args.frames, seed=2)
    valid = DataLoader(valid_set, args.batch, collate_fn=collate)
    test = DataLoader(FilterBanks(20, args.vocab, *args.frames, seed=3), 10, collate_fn=collate)

    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, inverse_sqrt(12))
    begin = time.time()
    for step, (feats, mask, labels) in enumerate(train, 1):
        out = model(input_features=spec_augment(feats).cuda(), attention_mask=mask.cuda(), labels=labels.cuda())
        opt.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 6 == 0:
            print(f"step {step} frames {feats.shape[1]} loss {out.loss.item():.3f} {time.time() - begin:.1f}s")
    print(f"validation loss {validate(model, valid):.3f}")

    hyps = decode(model, test, args.beams, args.decode_length)
    print(f"decoded {len(hyps)} utterances, {sum(map(len, hyps))} tokens, first: {hyps[0][:12]}")
    with tempfile.NamedTemporaryFile(suffix=".pt") as f:
        torch.save({"model": model.state_dict(), "config": cfg.to_dict()}, f.name)


if __name__ == "__main__":
    main()
