"""A LLaVA in two stages under accelerate: the projector first, then bottleneck adapters in the language model (recomputing)."""
import argparse
import tempfile

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, get_cosine_schedule_with_warmup

IMAGE_TOKEN = 32000


class Adapter(nn.Module):
    """Wraps a feed-forward part: its output plus a narrow residual path."""

    def __init__(self, inner, dim, width):
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(dim, width), nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        y = self.inner(x)
        return y + self.up(torch.nn.functional.silu(self.down(y)))


class CaptionDataset(Dataset):
    def __init__(self, n, image_size, patches, longest, seed):
        g = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(longest // 3, longest, (n,), generator=g).tolist()
        self.image_size, self.patches, self.seed = image_size, patches, seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 7919 + i)
        pixels = torch.randn(3, self.image_size, self.image_size, generator=g)
        prompt = torch.randint(10, 900, (6,), generator=g)
        answer = torch.randint(10, 31000, (self.lengths[i],), generator=g)
        ids = torch.cat([prompt[:3], torch.full((self.patches,), IMAGE_TOKEN), prompt[3:], answer])
        labels = ids.clone()
        labels[: self.patches + 6] = -100
        return pixels, ids, labels


def collate(rows):
    longest = max(len(r[1]) for r in rows)
    ids = torch.full((len(rows), longest), 0)
    labels = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (_, a, b) in enumerate(rows):
        ids[i, : len(a)], labels[i, : len(b)], mask[i, : len(a)] = a, b, 1
    return {"pixel_values": torch.stack([r[0] for r in rows]), "input_ids": ids, "labels": labels, "attention_mask": mask}


def build(args):
    vision = CLIPVisionConfig(hidden_size=args.vision_dim, intermediate_size=4 * args.vision_dim, num_hidden_layers=args.vision_layers,
                              num_attention_heads=args.vision_dim // 64, image_size=args.image_size, patch_size=14)
    text = LlamaConfig(vocab_size=32064, hidden_size=args.text_dim, intermediate_size=args.text_dim * 11 // 4,
                       num_hidden_layers=args.text_layers, num_attention_heads=args.text_dim // 64,
                       num_key_value_heads=args.text_dim // 256, max_position_embeddings=2048, pad_token_id=0)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN,
                         vision_feature_layer=-2, vision_feature_select_strategy="default")
    return LlavaForConditionalGeneration(config)


def run_stage(name, model, params, lr, batch, steps, args, accelerator, dataset):
    loader = DataLoader(dataset, batch_size=batch, shuffle=True, collate_fn=collate, num_workers=0, drop_last=True)
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.0, fused=True)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, steps)
    optimizer, loader, scheduler = accelerator.prepare(optimizer, loader, scheduler)
    model.train()
    done, running = 0, 0.0
    while done < steps:
        for batch_data in loader:
            with accelerator.accumulate(model):
                loss = model(**batch_data).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(params, 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.item()
            if accelerator.sync_gradients:
                done += 1
                if done % 4 == 0:
                    accelerator.print(f"{name} step {done} loss {running / (4 * args.accumulate):.4f}")
                    running = 0.0
                if done >= steps:
                    break


@torch.no_grad()
def evaluate(model, dataset, batch, accelerator):
    model.eval()
    loader = accelerator.prepare(DataLoader(dataset, batch_size=batch, collate_fn=collate))
    losses = [accelerator.gather_for_metrics(model(**b).loss.reshape(1)).mean().item() for b in loader]
    return sum(losses) / len(losses)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--image-size", type=int, default=252)
    p.add_argument("--vision-dim", type=int, default=768)
    p.add_argument("--vision-layers", type=int, default=10)
    p.add_argument("--text-dim", type=int, default=1024)
    p.add_argument("--text-layers", type=int, default=14)
    p.add_argument("--longest", type=int, default=180)
    p.add_argument("--batch-one", type=int, default=6)
    p.add_argument("--batch-two", type=int, default=10)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps-one", type=int, default=12)
    p.add_argument("--steps-two", type=int, default=12)
    p.add_argument("--adapter", type=int, default=96)
    args = p.parse_args()
    set_seed(2024)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate)
    assert accelerator.device.type == "cuda"
    patches = (args.image_size // 14) ** 2
    train = CaptionDataset(260, args.image_size, patches, args.longest, 1)
    held = CaptionDataset(21, args.image_size, patches, args.longest, 2)

    model = build(args)
    model.requires_grad_(False)
    projector = model.model.multi_modal_projector
    projector.requires_grad_(True)
    lm = model.model.language_model
    adapters = []
    for layer in lm.layers:
        layer.mlp = Adapter(layer.mlp, args.text_dim, args.adapter)
        adapters += [*layer.mlp.down.parameters(), *layer.mlp.up.parameters()]
    for q in adapters:
        q.requires_grad_(False)
    model = accelerator.prepare(model)
    accelerator.print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.0f}M parameters on {accelerator.device}")

    run_stage("projector", model, list(projector.parameters()), 1e-3, args.batch_one, args.steps_one, args, accelerator, train)
    print(f"held-out loss {evaluate(model, held, 8, accelerator):.4f}")

    for q in adapters:
        q.requires_grad_(True)
    core = accelerator.unwrap_model(model)
    core.config.use_cache = False
    core.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run_stage("adapters", model, adapters + list(projector.parameters()), 3e-4, args.batch_two, args.steps_two, args, accelerator, train)
    print(f"held-out loss {evaluate(model, held, 8, accelerator):.4f}")
    with tempfile.TemporaryDirectory() as folder:
        tuned = {n: q.detach().cpu() for n, q in core.named_parameters() if q.requires_grad}
        accelerator.save(tuned, f"{folder}/tuned.pt")
        print(f"saved {len(tuned)} tensors")


if __name__ == "__main__":
    main()
