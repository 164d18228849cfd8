"""VideoMAE pre-training with Accelerate: bf16, gradient accumulation, random tube masking."""
import argparse
import math
import os
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import VideoMAEConfig, VideoMAEForPreTraining


class MovingBlobs(Dataset):
    def __init__(self, n, frames, size, seed):
        self.n, self.frames, self.size, self.seed = n, frames, size, seed
        axis = torch.linspace(-1, 1, size)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + 31 * i)
        pos, vel = torch.rand(2, generator=g) - 0.5, (torch.rand(2, generator=g) - 0.5) * 0.15
        colour = torch.rand(3, 1, 1, generator=g)
        clip = torch.empty(self.frames, 3, self.size, self.size)
        for t in range(self.frames):
            cx, cy = (pos + t * vel).tolist()
            blob = torch.exp(-((self.xx - cx) ** 2 + (self.yy - cy) ** 2) * 12)
            clip[t] = (colour * blob - 0.45) / 0.225
        return clip


def tube_mask(batch, frames, per_frame, ratio, device):
    """The same spatial patches hidden in every tubelet of a clip; same count in each clip."""
    hide = int(per_frame * ratio)
    order = torch.rand(batch, per_frame, device=device).argsort(1)
    mask = torch.zeros(batch, per_frame, dtype=torch.bool, device=device)
    mask.scatter_(1, order[:, :hide], True)
    return mask.repeat(1, frames)


def param_groups(model, decay):
    yes, no = [], []
    for name, t in model.named_parameters():
        if t.requires_grad:
            (no if t.ndim <= 1 or "token" in name else yes).append(t)
    return [{"params": yes, "weight_decay": decay}, {"params": no, "weight_decay": 0.0}]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=160)
    p.add_argument("--frames", type=int, default=16)
    p.add_argument("--hidden", type=int, default=768)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--decoder-hidden", type=int, default=384)
    p.add_argument("--batch", type=int, default=22)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=26)
    p.add_argument("--mask-ratio", type=float, default=0.8)
    p.add_argument("--lr", type=float, default=6e-4)
    args = p.parse_args()

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accum)
    if accelerator.device.type != "cuda":
        raise SystemExit("needs a cuda device")
    set_seed(42)
    config = VideoMAEConfig(
        image_size=args.size, patch_size=16, num_frames=args.frames, tubelet_size=2, hidden_size=args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden,
        decoder_hidden_size=args.decoder_hidden, decoder_num_attention_heads=args.decoder_hidden // 64,
        decoder_num_hidden_layers=4, decoder_intermediate_size=4 * args.decoder_hidden, norm_pix_loss=True)
    model = VideoMAEForPreTraining(config)
    opt = torch.optim.AdamW(param_groups(model, 0.05), lr=args.lr, betas=(0.9, 0.95))
    train = DataLoader(MovingBlobs(args.batch * args.steps, args.frames, args.size, 0), args.batch, shuffle=True,
                       num_workers=2, drop_last=True)
    valid = DataLoader(MovingBlobs(30, args.frames, args.size, 10_000_000), 15)
    updates = math.ceil(args.steps / args.accum)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 3) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / updates))))
    model, opt, train, valid, sched = accelerator.prepare(model, opt, train, valid, sched)

    tubelets, per_frame = args.frames // 2, (args.size // 16) ** 2
    model.train()
    for step, clips in enumerate(train, 1):
        with accelerator.accumulate(model):
            mask = tube_mask(clips.shape[0], tubelets, per_frame, args.mask_ratio, clips.device)
            loss = model(pixel_values=clips, bool_masked_pos=mask).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        if step % 4 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")

    model.eval()
    losses = []
    with torch.no_grad():
        for clips in valid:
            mask = tube_mask(clips.shape[0], tubelets, per_frame, 0.5, clips.device)
            losses.append(accelerator.gather(model(pixel_values=clips, bool_masked_pos=mask).loss.reshape(1)))
    accelerator.print(f"validation loss at half masking {torch.cat(losses).mean().item():.4f}")
    with tempfile.TemporaryDirectory() as folder:
        encoder = accelerator.unwrap_model(model).videomae
        accelerator.save(encoder.state_dict(), os.path.join(folder, "encoder.bin"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
