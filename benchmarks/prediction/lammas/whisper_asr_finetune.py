"""Fine-tune a Whisper-small style model on (synthetic) speech, with warmup + linear decay and greedy evaluation."""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration, get_linear_schedule_with_warmup

SR, N_FFT, HOP = 16000, 400, 160


def mel_filterbank(n_mels, n_freqs, sr):
    def hz_to_mel(f):
        return 2595.0 * math.log10(1.0 + f / 700.0)
    mels = torch.linspace(hz_to_mel(0.0), hz_to_mel(sr / 2), n_mels + 2)
    hz = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    freqs = torch.linspace(0, sr / 2, n_freqs)
    up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.clamp(torch.minimum(up, down), min=0.0)


class Speech(Dataset):
    def __init__(self, n, vocab, max_sec, max_tok, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            sec = 0.4 * max_sec + 0.6 * max_sec * torch.rand(1, generator=g).item()
            toks = int(max_tok * sec / max_sec)
            self.items.append((int(sec * SR), torch.randint(10, vocab, (toks,), generator=g)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        n, toks = self.items[i]
        t = torch.arange(n) / SR
        wave = 0.3 * torch.sin(2 * math.pi * (120 + 5 * (i % 40)) * t) + 0.02 * torch.randn(n)
        return wave, toks


def collate(batch):
    waves = torch.nn.utils.rnn.pad_sequence([w for w, _ in batch], batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence([t for _, t in batch], batch_first=True, padding_value=-100)
    return waves, labels


class Features:
    """Log-mel spectrogram of a padded batch, always padded to the model's full window."""

    def __init__(self, cfg, device):
        self.frames = cfg.max_source_positions * 2
        self.fb = mel_filterbank(cfg.num_mel_bins, N_FFT // 2 + 1, SR).to(device)
        self.window = torch.hann_window(N_FFT, device=device)

    @torch.no_grad()
    def __call__(self, waves):
        waves = F.pad(waves, (0, self.frames * HOP - waves.size(1)))
        spec = torch.stft(waves, N_FFT, HOP, window=self.window, return_complex=True)[..., :-1]
        mel = self.fb @ spec.abs().square()
        logmel = mel.clamp_min(1e-10).log10()
        logmel = torch.maximum(logmel, logmel.amax(dim=(1, 2), keepdim=True) - 8.0)
        return (logmel + 4.0) / 4.0


@torch.no_grad()
def evaluate(model, loader, feats, device, max_new):
    model.eval()
    wrong = total = 0
    for waves, labels in loader:
        mel, labels = feats(waves.to(device)), labels.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            enc = model.model.encoder(mel)
            ids = torch.full((mel.size(0), 1), model.config.decoder_start_token_id, device=device)
            past, hyp = None, []
            for _ in range(max_new):
                out = model(encoder_outputs=enc, decoder_input_ids=ids, past_key_values=past, use_cache=True)
                past = out.past_key_values
                ids = out.logits[:, -1:].argmax(-1)
                hyp.append(ids)
        hyp = torch.cat(hyp, 1)
        ref = labels[:, :max_new]
        n = min(ref.size(1), hyp.size(1))
        keep = ref[:, :n] != -100
        wrong += ((hyp[:, :n] != ref[:, :n]) & keep).sum().item()
        total += keep.sum().item()
    model.train()
    return wrong / max(total, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--d-model", type=int, default=768)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--vocab", type=int, default=51865)
    p.add_argument("--source-positions", type=int, default=1500)
    p.add_argument("--train-items", type=int, default=40)
    p.add_argument("--max-tokens", type=int, default=110)
    args = p.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")

    cfg = WhisperConfig(vocab_size=args.vocab, d_model=args.d_model, encoder_layers=args.layers, decoder_layers=args.layers,
                        encoder_attention_heads=args.d_model // 64, decoder_attention_heads=args.d_model // 64,
                        encoder_ffn_dim=4 * args.d_model, decoder_ffn_dim=4 * args.d_model,
                        max_source_positions=args.source_positions, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                        decoder_start_token_id=1, dropout=0.1, apply_spec_augment=True, mask_time_prob=0.05)
    model = WhisperForConditionalGeneration(cfg).to(device)
    max_sec = args.source_positions * 2 * HOP / SR
    train = DataLoader(Speech(args.train_items, args.vocab, max_sec, args.max_tokens, 1), args.batch, shuffle=True, collate_fn=collate)
    valid = DataLoader(Speech(args.batch, args.vocab, max_sec, args.max_tokens, 2), args.batch, collate_fn=collate)
    feats = Features(cfg, device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    sched = get_linear_schedule_with_warmup(opt, 2, args.epochs * len(train))
    model.train()
    for epoch in range(args.epochs):
        for step, (waves, labels) in enumerate(train):
            mel = feats(waves.to(device))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_features=mel, labels=labels.to(device)).loss
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
        print(f"epoch {epoch} token error rate {evaluate(model, valid, feats, device, 24):.3f}")


if __name__ == "__main__":
    main()
