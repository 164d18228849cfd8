"""Learned primal-dual CT: a sparse CSR projector in a custom autograd Function, CG initialisation, unrolled CNNs."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

def build_projector(n, angles, device):
    """Pixel-driven parallel-beam matrix with linear interpolation, rows = angles * detectors."""
    det = int(math.ceil(n * math.sqrt(2))) | 1
    c = torch.arange(n, device=device, dtype=torch.float32) - (n - 1) / 2
    (ys, xs), (rows, cols, vals) = torch.meshgrid(c, c, indexing="ij"), ([], [], [])
    pix = torch.arange(n * n, device=device)
    for k in range(angles):
        th = math.pi * k / angles
        t = (xs * math.cos(th) + ys * math.sin(th)).flatten() + (det - 1) / 2
        lo = t.floor()
        w = t - lo
        for off, wt in ((0, 1 - w), (1, w)):
            rows.append((lo.long() + off).clamp_(0, det - 1) + k * det)
            cols.append(pix)
            vals.append(wt)
    idx = torch.stack([torch.cat(rows), torch.cat(cols)])
    coo = torch.sparse_coo_tensor(idx, torch.cat(vals) / n, (angles * det, n * n)).coalesce()
    return coo.to_sparse_csr(), coo.t().coalesce().to_sparse_csr(), det

class Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mat, mat_t):
        ctx.mats = (mat, mat_t)
        return (mat @ x.t().contiguous()).t().contiguous()
    @staticmethod
    def backward(ctx, g):
        mat, mat_t = ctx.mats
        return (mat_t @ g.t().contiguous()).t().contiguous(), None, None

class Operator:
    def __init__(self, n, angles, device):
        self.a, self.at, self.det = build_projector(n, angles, device)
        self.n, self.angles = n, angles
    def fwd(self, img):
        b, c = img.shape[:2]
        return Project.apply(img.reshape(b * c, -1), self.a, self.at).view(b, c, self.angles, self.det)
    def adj(self, sino):
        b, c = sino.shape[:2]
        return Project.apply(sino.reshape(b * c, -1), self.at, self.a).view(b, c, self.n, self.n)

@torch.no_grad()
def cg(op, sino, iters=8, lam=1e-2):
    b = op.adj(sino)
    x, r = torch.zeros_like(b), b.clone()
    p, rs = r.clone(), r.pow(2).sum((1, 2, 3), keepdim=True)
    for _ in range(iters):
        ap = op.adj(op.fwd(p)).add_(p, alpha=lam)
        alpha = rs / (p * ap).sum((1, 2, 3), keepdim=True)
        x += alpha * p
        r -= alpha * ap
        new = r.pow(2).sum((1, 2, 3), keepdim=True)
        p = r + (new / rs) * p
        rs = new
        if rs.max().item() < 1e-8:
            break
    return x

def cnn(i, o, ch):
    return nn.Sequential(nn.Conv2d(i, ch, 3, padding=1), nn.PReLU(ch), nn.Conv2d(ch, ch, 3, padding=1), nn.PReLU(ch),
                         nn.Conv2d(ch, o, 3, padding=1))

class PrimalDual(nn.Module):
    def __init__(self, op, iters=8, mem=4, ch=40):
        super().__init__()
        self.op, self.mem = op, mem
        self.dual = nn.ModuleList(cnn(mem + 2, mem, ch) for _ in range(iters))
        self.primal = nn.ModuleList(cnn(mem + 1, mem, ch) for _ in range(iters))
    def forward(self, sino, x0):
        x = x0.repeat(1, self.mem, 1, 1)
        y = sino.new_zeros(sino.shape[0], self.mem, *sino.shape[2:])
        for d, p in zip(self.dual, self.primal):
            y = y + d(torch.cat([y, self.op.fwd(x[:, 1:2]), sino], 1))
            x = x + p(torch.cat([x, self.op.adj(y[:, :1])], 1))
        return x[:, :1]

def ellipses(b, n, device, k=12):
    g = torch.linspace(-1, 1, n, device=device)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    img = torch.zeros(b, n, n, device=device)
    for _ in range(k):
        cx, cy = torch.rand(2, b, 1, 1, device=device) - 0.5
        ax, ay = 0.05 + 0.35 * torch.rand(2, b, 1, 1, device=device)
        img += torch.rand(b, 1, 1, device=device) * (((xx - cx) / ax) ** 2 + ((yy - cy) / ay) ** 2 < 1)
    return img.unsqueeze(1)

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=190)
    ap.add_argument("--angles", type=int, default=90)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--iters", type=int, default=8)
    ap.add_argument("--steps", type=int, default=8)
    a = ap.parse_args()
    torch.manual_seed(41)
    op = Operator(a.size, a.angles, "cuda")
    print(f"projector {tuple(op.a.shape)} nnz {op.a.values().numel()}")
    net = PrimalDual(op, a.iters).to("cuda")
    opt = torch.optim.RAdam(net.parameters(), lr=1e-3)
    for step in range(a.steps):
        gt = ellipses(a.batch, a.size, "cuda")
        sino = op.fwd(gt)
        sino = sino + 0.02 * sino.std() * torch.randn_like(sino)
        x0 = cg(op, sino)
        rec = net(sino, x0)
        loss = F.mse_loss(rec, gt)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        print(f"step {step} loss {loss.item():.5f} cg {F.mse_loss(x0, gt).item():.5f}")

if __name__ == "__main__":
    main()
