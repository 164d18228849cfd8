"""Dreamer-style world model: discrete RSSM on pixels, then actor and critic trained on imagined rollouts."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, OneHotCategoricalStraightThrough, kl_divergence

dev = "cuda"
SCALE = float(os.environ.get("SCALE", "1"))
ITER = int(os.environ.get("ITER", "25"))
B, T, HORIZON = max(1, round(32 * SCALE)), 32, 12
DETER, GROUPS, CATS, ACT = 512, 24, 24, 4
STOCH = GROUPS * CATS


def mlp(i, o, h=400, n=3):
    layers = []
    for _ in range(n):
        layers += [nn.Linear(i, h), nn.LayerNorm(h), nn.SiLU()]
        i = h
    return nn.Sequential(*layers, nn.Linear(i, o))


def cat(logits):
    logits = logits.view(*logits.shape[:-1], GROUPS, CATS)
    probs = 0.99 * logits.softmax(-1) + 0.01 / CATS
    return Independent(OneHotCategoricalStraightThrough(probs=probs), 1)


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        conv = []
        for a, b in ((3, 48), (48, 96), (96, 192), (192, 256)):
            conv += [nn.Conv2d(a, b, 4, 2, 1), nn.SiLU()]
        self.enc = nn.Sequential(*conv, nn.Flatten(), nn.Linear(256 * 16, 768))
        self.inp = nn.Sequential(nn.Linear(STOCH + ACT, 512), nn.SiLU())
        self.cell = nn.GRUCell(512, DETER)
        self.prior = mlp(DETER, STOCH, 512, 1)
        self.post = mlp(DETER + 768, STOCH, 512, 1)
        deconv = [nn.Linear(DETER + STOCH, 256 * 16), nn.Unflatten(1, (256, 4, 4))]
        for a, b in ((256, 192), (192, 96), (96, 48)):
            deconv += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.SiLU()]
        self.dec = nn.Sequential(*deconv, nn.ConvTranspose2d(48, 3, 4, 2, 1))
        self.reward = mlp(DETER + STOCH, 1)
        self.cont = mlp(DETER + STOCH, 1)

    def step(self, h, z, a):
        h = self.cell(self.inp(torch.cat([z, a], -1)), h)
        return h, cat(self.prior(h))

    def observe(self, emb, act):
        h = emb.new_zeros(emb.shape[0], DETER)
        z = emb.new_zeros(emb.shape[0], STOCH)
        hs, zs, posts, priors = [], [], [], []
        for t in range(emb.shape[1]):
            h, prior = self.step(h, z, act[:, t])
            post = cat(self.post(torch.cat([h, emb[:, t]], -1)))
            z = post.rsample().flatten(1)
            hs.append(h), zs.append(z), posts.append(post.base_dist.logits), priors.append(prior.base_dist.logits)
        return [torch.stack(v, 1) for v in (hs, zs, posts, priors)]


class Replay:
    """uint8 frames on the host."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.action = torch.randint(0, ACT, (n,), generator=g)
        move = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])[self.action] * 3
        self.pos = torch.cumsum(move, 0) % 56
        self.frame = torch.zeros(n, 3, 64, 64, dtype=torch.uint8)
        for i, (x, y) in enumerate(self.pos.tolist()):
            self.frame[i, i // 400 % 3, x:x + 8, y:y + 8] = 255
        self.reward = (self.pos.float() - 28).norm(dim=1).neg() / 28
        self.g = g

    def sample(self):
        i = torch.randint(0, len(self.frame) - T, (B, 1), generator=self.g) + torch.arange(T)
        frame = self.frame[i].to(dev).float() / 255 - 0.5
        return frame, F.one_hot(self.action[i], ACT).float().to(dev), self.reward[i].to(dev)


def kl(a, b, free=1.0):
    d = lambda x: Independent(OneHotCategoricalStraightThrough(logits=x), 1)
    return 0.8 * kl_divergence(d(a.detach()), d(b)).clamp(min=free).mean() + 0.2 * kl_divergence(d(a), d(b.detach())).clamp(min=free).mean()


def lambda_return(reward, value, disc, lam=0.95):
    out, last = [], value[-1]
    for t in reversed(range(len(reward))):
        last = reward[t] + disc[t] * ((1 - lam) * value[t + 1] + lam * last)
        out.append(last)
    return torch.stack(out[::-1])


def main():
    torch.manual_seed(0)
    wm, actor, critic = WorldModel().to(dev), mlp(DETER + STOCH, ACT).to(dev), mlp(DETER + STOCH, 1).to(dev)
    target = mlp(DETER + STOCH, 1).to(dev).requires_grad_(False)
    target.load_state_dict(critic.state_dict())
    opts = [torch.optim.Adam(m.parameters(), lr=r, eps=1e-5) for m, r in ((wm, 3e-4), (actor, 8e-5), (critic, 8e-5))]
    replay = Replay(4000)
    for it in range(ITER):
        frame, act, rew = replay.sample()
        emb = wm.enc(frame.flatten(0, 1)).view(B, T, -1)
        h, z, post, prior = wm.observe(emb, act)
        feat = torch.cat([h, z], -1)
        recon = wm.dec(feat.flatten(0, 1)).view_as(frame)
        img = (recon - frame).pow(2).sum((2, 3, 4)).mean()
        rloss = F.mse_loss(wm.reward(feat).squeeze(-1), rew)
        closs = F.binary_cross_entropy_with_logits(wm.cont(feat).squeeze(-1), torch.full_like(rew, 0.99))
        loss = img + rloss + closs + kl(post, prior)
        opts[0].zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(wm.parameters(), 100)
        opts[0].step()

        hh, zz = h.detach().flatten(0, 1), z.detach().flatten(0, 1)
        wm.requires_grad_(False)
        feats, ents = [torch.cat([hh, zz], -1)], []
        for _ in range(HORIZON):
            pi = OneHotCategoricalStraightThrough(logits=actor(feats[-1].detach()))
            hh, p = wm.step(hh, zz, pi.rsample())
            zz = p.rsample().flatten(1)
            feats.append(torch.cat([hh, zz], -1))
            ents.append(pi.entropy())
        feats = torch.stack(feats)
        disc = 0.99 * torch.sigmoid(wm.cont(feats[1:]).squeeze(-1))
        ret = lambda_return(wm.reward(feats[1:]).squeeze(-1), target(feats).squeeze(-1), disc)
        aloss = -(ret + 1e-3 * torch.stack(ents)).mean()
        opts[1].zero_grad()
        aloss.backward()
        opts[1].step()
        vloss = F.mse_loss(critic(feats[:-1].detach()).squeeze(-1), ret.detach())
        opts[2].zero_grad()
        vloss.backward()
        opts[2].step()
        wm.requires_grad_(True)
        for a, b in zip(target.parameters(), critic.parameters()):
            a.lerp_(b.detach(), 0.02)
        if it % 5 == 0:
            print(f"{it:3d} image {img.item():.1f} reward {rloss.item():.3f} actor {aloss.item():.3f} critic {vloss.item():.3f}")


if __name__ == "__main__":
    main()
