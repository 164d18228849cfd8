"""Train a Whisper-base sized model on synthetic speech: fp16 with GradScaler, log-mel computed on the GPU."""
import argparse
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration

SR, N_FFT, HOP, N_MELS = 16000, 400, 160, 80
CHUNK = 30 * SR
SOT, EOT, PAD = 50258, 50257, 50256


def mel_filters():
    def hz(m):
        return 700.0 * (10 ** (m / 2595.0) - 1)
    top = 2595.0 * torch.log10(torch.tensor(1 + SR / 2 / 700.0))
    pts = hz(torch.linspace(0, float(top), N_MELS + 2))
    freqs = torch.linspace(0, SR / 2, N_FFT // 2 + 1)
    up = (freqs[None] - pts[:-2, None]) / (pts[1:-1] - pts[:-2])[:, None]
    down = (pts[2:, None] - freqs[None]) / (pts[2:] - pts[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class LogMel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("filters", mel_filters())
        self.register_buffer("window", torch.hann_window(N_FFT))

    @torch.no_grad()
    def forward(self, wave):
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, return_complex=True)
        power = spec[..., :-1].abs() ** 2
        logmel = torch.log10((self.filters @ power).clamp(min=1e-10))
        logmel = torch.maximum(logmel, logmel.amax(dim=(1, 2), keepdim=True) - 8.0)
        return (logmel + 4.0) / 4.0


class Utterances(Dataset):
    """Beeps whose pitch follows the tokens."""

    def __init__(self, n, max_tokens, seed):
        g = torch.Generator().manual_seed(seed)
        self.noise = torch.randn(CHUNK, generator=g) * 0.02
        self.tokens = []
        for _ in range(n):
            length = int(torch.randint(max_tokens // 3, max_tokens, (1,), generator=g))
            self.tokens.append(torch.randint(0, 50000, (length,), generator=g))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        toks = self.tokens[i]
        frame = SR // 8
        n = min(len(toks), CHUNK // frame)
        t = torch.arange(frame) / SR
        pitch = 120 + (toks[:n] % 2000).float()
        tone = torch.sin(2 * torch.pi * pitch[:, None] * t[None]).reshape(-1) * 0.3
        wave = self.noise.roll(i * 977)
        wave[: tone.numel()] += tone
        return wave, toks


def collate(batch):
    waves = torch.stack([w for w, _ in batch])
    width = max(len(t) for _, t in batch) + 2
    labels = torch.full((len(batch), width), -100)
    for r, (_, t) in enumerate(batch):
        labels[r, 0] = SOT + 1  # language
        labels[r, 1:len(t) + 1] = t
        labels[r, len(t) + 1] = EOT
    return waves, labels


@torch.no_grad()
def evaluate(model, mel, loader):
    model.eval()
    losses, right, total = [], 0, 0
    for waves, labels in loader:
        labels = labels.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(input_features=mel(waves.to("cuda")), labels=labels, use_cache=False)
        keep = labels.ne(-100)
        right += (out.logits.argmax(-1).eq(labels) & keep).sum().item()
        total += keep.sum().item()
        losses.append(out.loss.item())
    model.train()
    return sum(losses) / len(losses), right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--max-tokens", type=int, default=160)
    ap.add_argument("--d-model", type=int, default=512)
    ap.add_argument("--layers", type=int, default=6)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--eval-size", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(5)

    cfg = WhisperConfig(vocab_size=51865, num_mel_bins=N_MELS, d_model=args.d_model,
                        encoder_layers=args.layers, decoder_layers=args.layers,
                        encoder_attention_heads=8, decoder_attention_heads=8,
                        encoder_ffn_dim=4 * args.d_model, decoder_ffn_dim=4 * args.d_model,
                        dropout=0.05, pad_token_id=PAD, bos_token_id=EOT, eos_token_id=EOT,
                        decoder_start_token_id=SOT)
    model = WhisperForConditionalGeneration(cfg).to("cuda")
    mel = LogMel().to("cuda")

    train = DataLoader(Utterances(args.steps * args.batch_size, args.max_tokens, 0), args.batch_size,
                       shuffle=True, collate_fn=collate)
    valid = DataLoader(Utterances(args.eval_size, args.max_tokens, 1), args.batch_size, collate_fn=collate)

    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=args.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    warm = max(1, args.steps // 6)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: (s + 1) / warm if s < warm else max(0.0, (args.steps - s) / (args.steps - warm)))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 14)

    model.train()
    for step, (waves, labels) in enumerate(train):
        feats = mel(waves.to("cuda", non_blocking=True))
        labels = labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_features=feats, labels=labels, use_cache=False).loss
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if step % 5 == 0:
            print(f"{step:3d} loss {loss.item():.4f} tokens {labels.shape[1]} lr {sched.get_last_lr()[0]:.2e}")
    loss, acc = evaluate(model, mel, valid)
    print(f"valid loss {loss:.4f} token accuracy {acc:.4f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "whisper.pt"))


if __name__ == "__main__":
    main()
