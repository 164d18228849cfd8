"""Two-speaker separation: TCN masks on a learned basis, PIT SI-SNR plus multi-resolution STFT loss."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

class TCNBlock(nn.Module):
    def __init__(self, ch, hidden, dilation):
        super().__init__()
        self.inp = nn.Conv1d(ch, hidden, 1)
        self.p1, self.n1 = nn.PReLU(), nn.GroupNorm(1, hidden)
        self.depth = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.p2, self.n2 = nn.PReLU(), nn.GroupNorm(1, hidden)
        self.res, self.skip = nn.Conv1d(hidden, ch, 1), nn.Conv1d(hidden, ch, 1)

    def forward(self, x):
        y = self.n1(self.p1(self.inp(x)))
        y = self.n2(self.p2(self.depth(y)))
        return x + self.res(y), self.skip(y)

class TasNet(nn.Module):
    def __init__(self, basis, kernel, ch, hidden, layers, repeats, speakers=2):
        super().__init__()
        self.k, self.s, self.n = kernel, kernel // 2, speakers
        self.enc = nn.Conv1d(1, basis, kernel, stride=self.s, bias=False)
        self.norm, self.bottle = nn.GroupNorm(1, basis), nn.Conv1d(basis, ch, 1)
        self.tcn = nn.ModuleList(TCNBlock(ch, hidden, 2 ** i) for _ in range(repeats) for i in range(layers))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(ch, basis * speakers, 1))
        self.dec = nn.ConvTranspose1d(basis, 1, kernel, stride=self.s, bias=False)

    def forward(self, wav):
        length = wav.size(-1)
        pad = (self.s - (length - self.k) % self.s) % self.s
        w = F.relu(self.enc(F.pad(wav, (0, pad))[:, None]))
        x, total = self.bottle(self.norm(w)), 0
        for blk in self.tcn:
            x, skip = blk(x)
            total = total + skip
        m = torch.sigmoid(self.mask(total)).view(w.size(0), self.n, w.size(1), -1)
        y = self.dec((m * w[:, None]).flatten(0, 1))
        return y.view(w.size(0), self.n, -1)[..., :length]

def si_snr(est, ref, eps=1e-8):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + eps)
    return 10 * torch.log10(proj.pow(2).sum(-1) / ((est - proj).pow(2).sum(-1) + eps) + eps)

def pit(est, ref):
    """Best permutation per item; returns the score and the references in that order."""
    perms = list(itertools.permutations(range(est.size(1))))
    scores = torch.stack([si_snr(est, ref[:, list(pm)]).mean(1) for pm in perms], 1)
    best, idx = scores.max(1)
    order = torch.tensor(perms, device=est.device)[idx]
    return best, ref.gather(1, order[..., None].expand_as(ref))

class MultiResSTFT(nn.Module):
    def __init__(self, ffts=(512, 1024, 2048)):
        super().__init__()
        self.ffts = ffts
        for n in ffts:
            self.register_buffer(f"win{n}", torch.hann_window(n), persistent=False)

    def forward(self, est, ref):
        loss = 0.0
        for n in self.ffts:
            win = getattr(self, f"win{n}")
            e = torch.stft(est.flatten(0, 1), n, n // 4, window=win, return_complex=True)
            r = torch.stft(ref.flatten(0, 1), n, n // 4, window=win, return_complex=True)
            em, rm = e.abs().clamp(min=1e-5), r.abs().clamp(min=1e-5)
            conv = torch.linalg.norm(rm - em, dim=(1, 2)) / torch.linalg.norm(rm, dim=(1, 2))
            phase = torch.view_as_real(e * r.conj() / (em * rm))[..., 0]
            loss = loss + conv.mean() + (em.log() - rm.log()).abs().mean() + 0.1 * (1 - phase).mean()
        return loss / len(self.ffts)

def mixtures(n, samples, rate, device):
    t = torch.arange(samples, device=device) / rate
    f0 = torch.rand(n, 2, 1, device=device) * 300 + 80
    vib = 0.02 * torch.sin(2 * torch.pi * 5 * t)
    src = sum(torch.sin(2 * torch.pi * k * f0 * t * (1 + vib)) / k for k in range(1, 6))
    src = src * torch.rand(n, 2, 1, device=device) + 0.01 * torch.randn(n, 2, samples, device=device)
    # a decaying random room response per source, applied in the frequency domain
    rir = torch.randn(n, 2, rate // 4, device=device) * torch.exp(-30 * t[: rate // 4])
    size = samples + rate // 4 - 1
    src = torch.fft.irfft(torch.fft.rfft(src, size) * torch.fft.rfft(rir, size), size)[..., :samples]
    src = src / src.std(-1, keepdim=True)
    return src.sum(1), src

def main():
    p = argparse.ArgumentParser()
    for k, v in dict(batch=12, rate=16000, basis=512, kernel=32, ch=128, hidden=512, layers=6, repeats=2, steps=8).items():
        p.add_argument(f"--{k}", type=int, default=v)
    p.add_argument("--seconds", type=float, nargs="+", default=[3.0, 4.03, 3.5])
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(17)
    net = TasNet(a.basis, a.kernel, a.ch, a.hidden, a.layers, a.repeats).to(a.device)
    spec = MultiResSTFT().to(a.device)
    opt = torch.optim.RAdam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    for step in range(a.steps):
        samples = int(a.rate * a.seconds[step % len(a.seconds)])
        mix, src = mixtures(a.batch, samples, a.rate, a.device)
        est = net(mix)
        snr, ref = pit(est, src)
        loss = -snr.mean() + spec(est, ref)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step(loss.item())
        print(f"step {step} samples {samples} loss {loss.item():.3f} si-snr {snr.mean().item():.3f} lr {opt.param_groups[0]['lr']:.1e}")

if __name__ == "__main__":
    main()
