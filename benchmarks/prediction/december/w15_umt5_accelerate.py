"""Sequence-to-sequence training of a UMT5-style model with Accelerate: bf16, gradient accumulation, Adafactor, beam search at the end.

Source and target lengths vary; batches are padded to a multiple of 16. State is saved and loaded with accelerator.save_state.
"""
import argparse
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import Adafactor, UMT5Config, UMT5ForConditionalGeneration, get_inverse_sqrt_schedule

PAD, EOS = 0, 1


class Summaries(Dataset):
    """The 'summary' is every fourth word of the text."""

    def __init__(self, n, vocab, longest, seed):
        self.g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(longest // 5, longest, (n,), generator=self.g)
        self.texts = [torch.randint(3, vocab, (int(k),), generator=self.g) for k in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        text = self.texts[i]
        return torch.cat([text, torch.tensor([EOS])]), torch.cat([text[::4], torch.tensor([EOS])])


class Collator:
    def __init__(self, multiple=16):
        self.multiple = multiple

    def pad(self, rows, value):
        width = -(-max(len(r) for r in rows) // self.multiple) * self.multiple
        return torch.stack([torch.nn.functional.pad(r, (0, width - len(r)), value=value) for r in rows])

    def __call__(self, batch):
        ids = self.pad([b[0] for b in batch], PAD)
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": self.pad([b[1] for b in batch], -100)}


def make_model(args):
    cfg = UMT5Config(vocab_size=args.vocab, d_model=args.width, d_kv=64, d_ff=int(args.width * 2.75) // 8 * 8, num_layers=args.layers,
                     num_decoder_layers=args.layers - 2, num_heads=args.width // 64, feed_forward_proj="gated-gelu", dropout_rate=0.1,
                     pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    return UMT5ForConditionalGeneration(cfg)


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    losses = []
    for batch in loader:
        losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(len(batch["labels"]))))
    model.train()
    return torch.cat(losses).mean().item()


@torch.no_grad()
def beam_overlap(accelerator, model, loader, beams, new_tokens, batches):
    """Share of generated words that occur in the reference."""
    model.eval()
    core, hit, total = accelerator.unwrap_model(model), 0, 0
    for k, batch in enumerate(loader):
        if k == batches:
            break
        with accelerator.autocast():
            out = core.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=beams,
                                min_new_tokens=new_tokens, max_new_tokens=new_tokens, do_sample=False)
        for hyp, ref in zip(out.tolist(), batch["labels"].tolist()):
            words = set(ref)
            hit += sum(h in words for h in hyp[1:])
            total += len(hyp) - 1
    model.train()
    return hit / max(1, total)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=72000)
    ap.add_argument("--width", type=int, default=640)
    ap.add_argument("--layers", type=int, default=9)
    ap.add_argument("--longest", type=int, default=400)
    ap.add_argument("--batch", type=int, default=11)
    ap.add_argument("--accumulate", type=int, default=3)
    ap.add_argument("--examples", type=int, default=600)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--beams", type=int, default=4)
    ap.add_argument("--new-tokens", type=int, default=40)
    args = ap.parse_args()
    set_seed(77)
    with tempfile.TemporaryDirectory() as folder:
        accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate,
                                  project_config=ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=1))
        assert accelerator.device.type == "cuda"
        model = make_model(args)
        accelerator.print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
        opt = Adafactor(model.parameters(), lr=2e-3, scale_parameter=True, relative_step=False, warmup_init=False, beta1=None)
        sched = get_inverse_sqrt_schedule(opt, num_warmup_steps=4)
        train = DataLoader(Summaries(args.examples, args.vocab, args.longest, 1), args.batch, shuffle=True, collate_fn=Collator())
        valid = DataLoader(Summaries(56, args.vocab, args.longest, 2), args.batch, collate_fn=Collator())
        model, opt, sched, train, valid = accelerator.prepare(model, opt, sched, train, valid)

        for epoch in range(args.epochs):
            updates = 0
            for k, batch in enumerate(train):
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        updates += 1
                    opt.step()
                    sched.step()
                    opt.zero_grad()
                if k % 6 == 0:
                    accelerator.print(f"batch {k} {tuple(batch['input_ids'].shape)} -> {batch['labels'].shape[1]} loss {loss.item():.4f}")
            accelerator.print(f"epoch {epoch}: {updates} updates, valid loss {evaluate(accelerator, model, valid):.4f}")
            accelerator.save_state()
        accelerator.print(f"overlap with beams {beam_overlap(accelerator, model, valid, args.beams, args.new_tokens, 2):.4f}")
        accelerator.load_state()
        accelerator.print(f"valid loss after reload {evaluate(accelerator, model, valid):.4f}")


if __name__ == "__main__":
    main()
