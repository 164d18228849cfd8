# T5 v1.1 style encoder-decoder trained with the Hugging Face Trainer on a synthetic rewriting task.
import argparse
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments, set_seed

PAD, EOS = 0, 1


class Rewriting(Dataset):
    """Target = every third token of the source, shifted by a constant."""

    def __init__(self, n, vocab, max_src, seed):
        rng = np.random.default_rng(seed)
        self.items = []
        for _ in range(n):
            length = int(rng.integers(max_src // 3, max_src))
            src = rng.integers(10, vocab - 10, size=length)
            tgt = np.append(src[::3] + 5, EOS)
            self.items.append((src, tgt))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        src, tgt = self.items[i]
        return {"input_ids": src, "labels": tgt}


class Collator:
    def __init__(self, multiple=8):
        self.multiple = multiple

    def _pad(self, seqs, value):
        longest = max(len(s) for s in seqs)
        longest = -(-longest // self.multiple) * self.multiple
        out = np.full((len(seqs), longest), value, dtype=np.int64)
        for row, s in zip(out, seqs):
            row[: len(s)] = s
        return torch.from_numpy(out)

    def __call__(self, features):
        ids = self._pad([f["input_ids"] for f in features], PAD)
        labels = self._pad([f["labels"] for f in features], -100)
        start = torch.full_like(labels[:, :1], PAD)
        return {
            "input_ids": ids,
            "attention_mask": (ids != PAD).long(),
            "decoder_input_ids": torch.cat([start, labels[:, :-1].clamp(min=PAD)], 1),
            "labels": labels,
        }


def keep_argmax(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(-1)


def token_accuracy(pred):
    mask = pred.label_ids != -100
    return {"token_accuracy": float((pred.predictions == pred.label_ids)[mask].mean())}


def build_model(args):
    cfg = T5Config(
        vocab_size=args.vocab,
        d_model=args.d_model,
        d_kv=64,
        d_ff=args.d_model * 5 // 2,
        num_layers=args.layers,
        num_decoder_layers=args.layers - 1,
        num_heads=args.d_model // 64,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.1,
        decoder_start_token_id=PAD,
    )
    return T5ForConditionalGeneration(cfg)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=21500)
    parser.add_argument("--d_model", type=int, default=576)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--max_src", type=int, default=310)
    parser.add_argument("--batch", type=int, default=22)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--eval_items", type=int, default=150)
    args = parser.parse_args()
    set_seed(2024)

    model = build_model(args)
    print(f"{model.num_parameters() / 1e6:.1f}M parameters")
    train = Rewriting(args.steps * args.batch, args.vocab, args.max_src, 1)
    val = Rewriting(args.eval_items, args.vocab, args.max_src, 2)

    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            per_device_eval_batch_size=args.batch + 14,
            learning_rate=1e-3,
            optim="adafactor",
            lr_scheduler_type="linear",
            warmup_steps=10,
            max_grad_norm=1.0,
            label_smoothing_factor=0.1,
            bf16=True,
            eval_strategy="steps",
            eval_steps=max(args.steps // 2, 1),
            save_strategy="steps",
            save_steps=args.steps,
            save_total_limit=1,
            logging_steps=10,
            dataloader_num_workers=0,
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            seed=2024,
        )
        trainer = Trainer(
            model=model,
            args=targs,
            train_dataset=train,
            eval_dataset=val,
            data_collator=Collator(),
            compute_metrics=token_accuracy,
            preprocess_logits_for_metrics=keep_argmax,
        )
        result = trainer.train()
        print("train loss", round(result.training_loss, 4))
        print(trainer.evaluate())

        model.eval()
        device = torch.device("cuda")
        batch = Collator()([val[i] for i in range(min(12, len(val)))])
        out_ids = model.generate(
            input_ids=batch["input_ids"].to(device),
            attention_mask=batch["attention_mask"].to(device),
            max_new_tokens=24,
            min_new_tokens=24,
            num_beams=3,
        )
        print("sample", out_ids[0, :12].tolist(), tuple(out_ids.shape))


if __name__ == "__main__":
    main()
