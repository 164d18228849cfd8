"""Train a Whisper-shaped recognizer: log-mel on the GPU, fp16 autocast with GradScaler, greedy decoding in evaluation."""
import argparse
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

RATE, N_FFT, HOP = 16000, 400, 160


class Utterances(Dataset):
    def __init__(self, n, seconds, vocab, max_text, seed):
        self.n, self.samples, self.vocab, self.max_text, self.seed = n, seconds * RATE, vocab, max_text, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        voiced = int(torch.randint(self.samples // 4, self.samples, (1,), generator=g))
        t = torch.arange(voiced) / RATE
        pitch = 90 + 160 * torch.rand(1, generator=g)
        wave = torch.zeros(self.samples)
        wave[:voiced] = 0.3 * torch.sin(6.2832 * pitch * t)
        length = max(4, int(self.max_text * voiced / self.samples))
        text = torch.randint(10, self.vocab, (length,), generator=g)
        return wave, text


def collate(rows):
    width = max(len(t) for _, t in rows) + 1
    labels = torch.full((len(rows), width), -100)
    for i, (_, t) in enumerate(rows):
        labels[i, :len(t)] = t
        labels[i, len(t)] = 2
    return torch.stack([w for w, _ in rows]), labels


class LogMel(nn.Module):
    def __init__(self, n_mels=80):
        super().__init__()
        freqs = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
        mel_max = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700))
        hz = 700 * (10 ** (torch.linspace(0, 1, n_mels + 2) * mel_max / 2595) - 1)
        up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("filters", torch.minimum(up, down).clamp(min=0))
        self.register_buffer("window", torch.hann_window(N_FFT))

    @torch.no_grad()
    def forward(self, wave):
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, return_complex=True)[..., :-1].abs().square()
        mel = (self.filters @ spec).clamp(min=1e-10).log10()
        mel = torch.maximum(mel, mel.amax(dim=(1, 2), keepdim=True) - 8.0)
        return (mel + 4.0) / 4.0


@torch.no_grad()
def greedy(model, features, max_tokens, start):
    enc = model.model.encoder(features).last_hidden_state
    tokens = torch.full((features.size(0), 1), start, device=features.device)
    past, step_in = None, tokens
    for _ in range(max_tokens):
        out = model(encoder_outputs=BaseModelOutput(last_hidden_state=enc), decoder_input_ids=step_in,
                    past_key_values=past, use_cache=True)
        past = out.past_key_values
        step_in = out.logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, step_in], 1)
    return tokens[:, 1:]


def evaluate(model, mel, loader, args):
    model.eval()
    losses, right, seen = [], 0, 0
    for wave, labels in loader:
        wave, labels = wave.to("cuda"), labels.to("cuda")
        features = mel(wave)
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            losses.append(model(input_features=features, labels=labels).loss.item())
            hyp = greedy(model, features, args.decode_tokens, 1)
        n = min(hyp.size(1), labels.size(1))
        keep = labels[:, :n] != -100
        right += (hyp[:, :n][keep] == labels[:, :n][keep]).sum().item()
        seen += keep.sum().item()
    model.train()
    print(f"  eval loss {sum(losses) / len(losses):.3f} token accuracy {right / max(1, seen):.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--d-model", type=int, default=448)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--heads", type=int, default=7)
    p.add_argument("--vocab", type=int, default=30522)
    p.add_argument("--seconds", type=int, default=20)
    p.add_argument("--max-text", type=int, default=110)
    p.add_argument("--batch", type=int, default=18)
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--decode-tokens", type=int, default=40)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()
    torch.manual_seed(7)

    cfg = WhisperConfig(vocab_size=args.vocab, d_model=args.d_model, encoder_layers=args.layers,
                        decoder_layers=args.layers, encoder_attention_heads=args.heads,
                        decoder_attention_heads=args.heads, encoder_ffn_dim=4 * args.d_model,
                        decoder_ffn_dim=4 * args.d_model, max_source_positions=args.seconds * 50,
                        max_target_positions=160, dropout=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                        decoder_start_token_id=1)
    model = WhisperForConditionalGeneration(cfg).to("cuda")
    model.train()
    mel = LogMel().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps, pct_start=0.2)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 14)
    train = DataLoader(Utterances(args.steps * args.batch, args.seconds, args.vocab, args.max_text, 0),
                       batch_size=args.batch, collate_fn=collate, num_workers=2, pin_memory=True)
    valid = DataLoader(Utterances(24, args.seconds, args.vocab, args.max_text, 10 ** 6), batch_size=12,
                       collate_fn=collate)

    for step, (wave, labels) in enumerate(train, 1):
        features = mel(wave.to("cuda", non_blocking=True))
        labels = labels.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_features=features, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
        if step % 25 == 0:
            evaluate(model, mel, valid, args)
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "whisper.pt"))


if __name__ == "__main__":
    main()
