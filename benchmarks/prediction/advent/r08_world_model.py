"""Model-based RL from pixels: recurrent state-space world model with discrete latents, actor and critic trained in imagination."""
import argparse
import collections
import copy
import logging

import numpy as np
import torch
import torch.distributions as td
import torch.nn as nn
import torch.nn.functional as F

logger = logging.getLogger("world")


class PaddleEnv:
    """Catch the falling block; 64x64x3 frames."""

    actions = 3

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.x, self.bx, self.by, self.t = 30, int(self.rng.integers(4, 60)), 0, 0
        return self.frame()

    def frame(self):
        f = np.zeros((3, 64, 64), np.uint8)
        f[0, 58:62, max(self.x - 6, 0): self.x + 6] = 255
        f[1, self.by: self.by + 4, self.bx - 2: self.bx + 2] = 255
        f[2] = (self.t * 3) % 256
        return f

    def step(self, a):
        self.x = int(np.clip(self.x + (a - 1) * 4, 6, 58))
        self.by, self.t, r = self.by + 3, self.t + 1, 0.0
        if self.by >= 58:
            r = 1.0 if abs(self.bx - self.x) < 8 else -1.0
            self.bx, self.by = int(self.rng.integers(4, 60)), 0
        return self.frame(), r, self.t >= 200


class Replay:
    def __init__(self, cap):
        self.obs, self.act = np.zeros((cap, 3, 64, 64), np.uint8), np.zeros(cap, np.int64)
        self.rew, self.first = np.zeros(cap, np.float32), np.zeros(cap, np.float32)
        self.n, self.cap, self.rng = 0, cap, np.random.default_rng(0)

    def add(self, o, a, r, first):
        i = self.n % self.cap
        self.obs[i], self.act[i], self.rew[i], self.first[i] = o, a, r, first
        self.n += 1

    def sample(self, B, T, dev):
        s = self.rng.integers(0, min(self.n, self.cap) - T, B)
        ix = s[:, None] + np.arange(T)
        move = lambda a: torch.from_numpy(a[ix]).to(dev)
        return move(self.obs), move(self.act), move(self.rew), move(self.first)


def mlp(i, h, o, n=2):
    mods = []
    for _ in range(n):
        mods += [nn.Linear(i, h, bias=False), nn.LayerNorm(h), nn.SiLU()]
        i = h
    return nn.Sequential(*mods, nn.Linear(i, o))


class ImgNorm(nn.GroupNorm):
    def __init__(self, c):
        super().__init__(1, c)


class WorldModel(nn.Module):
    def __init__(self, acts, depth=40, deter=768, hid=512, groups=32, classes=32):
        super().__init__()
        self.g, self.c, self.deter = groups, classes, deter
        enc, c = [], 3
        for m in (1, 2, 4, 8):
            enc += [nn.Conv2d(c, depth * m, 4, 2, 1, bias=False), ImgNorm(depth * m), nn.SiLU()]
            c = depth * m
        self.enc = nn.Sequential(*enc, nn.Flatten())
        E, stoch = depth * 8 * 16, groups * classes
        self.stoch = stoch
        self.pre = nn.Sequential(nn.Linear(stoch + acts, hid), nn.LayerNorm(hid), nn.SiLU())
        self.cell = nn.GRUCell(hid, deter)
        self.prior, self.post = mlp(deter, hid, stoch, 1), mlp(deter + E, hid, stoch, 1)
        self.feat = deter + stoch
        self.up = nn.Linear(self.feat, depth * 8 * 16)
        dec = []
        for m in (4, 2, 1):
            dec += [nn.ConvTranspose2d(c, depth * m, 4, 2, 1, bias=False), ImgNorm(depth * m), nn.SiLU()]
            c = depth * m
        self.dec = nn.Sequential(*dec, nn.ConvTranspose2d(c, 3, 4, 2, 1))
        self.reward, self.cont = mlp(self.feat, hid, 1), mlp(self.feat, hid, 1)

    def dist(self, logits):
        lg = logits.view(*logits.shape[:-1], self.g, self.c)
        probs = 0.99 * lg.softmax(-1) + 0.01 / self.c
        return td.Independent(td.OneHotCategoricalStraightThrough(probs=probs), 1)

    def initial(self, B, dev):
        return torch.zeros(B, self.deter, device=dev), torch.zeros(B, self.stoch, device=dev)

    def recur(self, h, z, a):
        return self.cell(self.pre(torch.cat([z, a], -1)), h)

    def imagine_step(self, h, z, a):
        h = self.recur(h, z, a)
        return h, self.dist(self.prior(h)).sample().flatten(-2)

    def observe(self, emb, act, first):
        B, T = act.shape[:2]
        h, z = self.initial(B, emb.device)
        hs, zs, pri, pos = [], [], [], []
        for t in range(T):
            keep = 1 - first[:, t, None]
            h = self.recur(h * keep, z * keep, act[:, t] * keep)
            lp, lq = self.prior(h), self.post(torch.cat([h, emb[:, t]], -1))
            z = self.dist(lq).rsample().flatten(-2)
            hs.append(h), zs.append(z), pri.append(lp), pos.append(lq)
        st = lambda l: torch.stack(l, 1)
        return st(hs), st(zs), st(pri), st(pos)

    def loss(self, obs, act, rew, first):
        B, T = act.shape
        x = obs.flatten(0, 1).float() / 255 - 0.5
        emb = self.enc(x).view(B, T, -1)
        prev = F.pad(F.one_hot(act, PaddleEnv.actions).float(), (0, 0, 1, 0))[:, :-1]
        h, z, lp, lq = self.observe(emb, prev, first)
        f = torch.cat([h, z], -1)
        rec = self.dec(self.up(f.flatten(0, 1)).unflatten(-1, (-1, 4, 4)))
        rec_loss = (rec - x).pow(2).flatten(1).sum(1).mean()
        r_loss = F.mse_loss(self.reward(f).squeeze(-1), rew)
        c_loss = F.binary_cross_entropy_with_logits(self.cont(f).squeeze(-1), 1 - first)
        kl = lambda a, b: td.kl_divergence(self.dist(a), self.dist(b)).clamp(min=1.0).mean()
        dyn, rep = kl(lq.detach(), lp), kl(lq, lp.detach())
        return rec_loss + r_loss + c_loss + 0.5 * dyn + 0.1 * rep, h.detach(), z.detach(), rec_loss


class Agent:
    def __init__(self, a):
        self.a, dev = a, a.device
        self.wm = WorldModel(PaddleEnv.actions, a.depth, a.deter).to(dev)
        self.actor = mlp(self.wm.feat, 512, PaddleEnv.actions, 3).to(dev)
        self.critic = mlp(self.wm.feat, 512, 1, 3).to(dev)
        self.slow = copy.deepcopy(self.critic).requires_grad_(False)
        self.o_wm = torch.optim.Adam(self.wm.parameters(), 1e-4, eps=1e-8)
        self.o_a = torch.optim.Adam(self.actor.parameters(), 3e-5, eps=1e-5)
        self.o_c = torch.optim.Adam(self.critic.parameters(), 3e-5, eps=1e-5)

    @torch.no_grad()
    def act(self, obs, state, prev, greedy=False):
        x = torch.from_numpy(obs)[None].to(self.a.device).float() / 255 - 0.5
        h, z = state
        h = self.wm.recur(h, z, prev)
        z = self.wm.dist(self.wm.post(torch.cat([h, self.wm.enc(x)], -1))).sample().flatten(-2)
        lg = self.actor(torch.cat([h, z], -1))
        a = lg.argmax(-1) if greedy else td.Categorical(logits=lg).sample()
        return a.item(), (h, z), F.one_hot(a, PaddleEnv.actions).float()

    def step(self, opt, loss, params, clip):
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, clip)
        opt.step()

    def update(self, batch):
        a = self.a
        wl, h, z, rec = self.wm.loss(*batch)
        self.step(self.o_wm, wl, self.wm.parameters(), 1000.0)
        h, z = h.flatten(0, 1), z.flatten(0, 1)
        feats, logps, ents = [torch.cat([h, z], -1)], [], []
        for _ in range(a.horizon):
            pi = td.Categorical(logits=self.actor(feats[-1]))
            act = pi.sample()
            logps.append(pi.log_prob(act)), ents.append(pi.entropy())
            with torch.no_grad():
                h, z = self.wm.imagine_step(h, z, F.one_hot(act, PaddleEnv.actions).float())
            feats.append(torch.cat([h, z], -1))
        f = torch.stack(feats)
        with torch.no_grad():
            rew = self.wm.reward(f[1:]).squeeze(-1)
            disc = 0.997 * torch.sigmoid(self.wm.cont(f[1:]).squeeze(-1))
            val = self.slow(f).squeeze(-1)
            ret, outs = val[-1], []
            for t in reversed(range(a.horizon)):
                ret = rew[t] + disc[t] * (0.05 * val[t + 1] + 0.95 * ret)
                outs.append(ret)
            ret = torch.stack(outs[::-1])
            w = torch.cumprod(torch.cat([torch.ones_like(disc[:1]), disc[:-1]]), 0)
            scale = (ret.flatten()[:: max(1, ret.numel() // 10000)].quantile(0.95) - ret.mean()).clamp(min=1.0)
            adv = (ret - val[:-1]) / scale
        al = -(w * (torch.stack(logps) * adv + 3e-4 * torch.stack(ents))).mean()
        self.step(self.o_a, al, self.actor.parameters(), 100.0)
        cl = (w * (self.critic(f[:-1]).squeeze(-1) - ret).pow(2)).mean()
        self.step(self.o_c, cl, self.critic.parameters(), 100.0)
        with torch.no_grad():
            for s, p in zip(self.slow.parameters(), self.critic.parameters()):
                s.lerp_(p, 0.02)
        return {"rec": rec.item(), "actor": al.item(), "critic": cl.item()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--prefill", type=int, default=2500)
    ap.add_argument("--updates", type=int, default=100)
    ap.add_argument("--env-per-update", type=int, default=8)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--length", type=int, default=56)
    ap.add_argument("--horizon", type=int, default=15)
    ap.add_argument("--depth", type=int, default=40)
    ap.add_argument("--deter", type=int, default=768)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s | %(message)s")
    torch.manual_seed(4)
    agent, env, buf = Agent(a), PaddleEnv(0), Replay(20000)
    rng = np.random.default_rng(1)
    obs, first = env.reset(), 1.0
    for _ in range(a.prefill):
        act = int(rng.integers(3))
        nxt, r, done = env.step(act)
        buf.add(obs, act, r, first)
        obs, first = (env.reset(), 1.0) if done else (nxt, 0.0)
    state, prev = agent.wm.initial(1, a.device), torch.zeros(1, 3, device=a.device)
    meter = collections.defaultdict(list)
    for u in range(a.updates):
        for _ in range(a.env_per_update):
            act, state, prev = agent.act(obs, state, prev)
            nxt, r, done = env.step(act)
            buf.add(obs, act, r, first)
            obs, first = nxt, 0.0
            if done:
                obs, first = env.reset(), 1.0
                state, prev = agent.wm.initial(1, a.device), torch.zeros(1, 3, device=a.device)
        for k, v in agent.update(buf.sample(a.batch, a.length, a.device)).items():
            meter[k].append(v)
        if (u + 1) % 20 == 0:
            logger.info("update %d %s", u + 1, {k: round(float(np.mean(v[-20:])), 4) for k, v in meter.items()})


if __name__ == "__main__":
    main()
