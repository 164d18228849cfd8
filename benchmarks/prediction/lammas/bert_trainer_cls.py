"""A BERT classifier of support tickets trained with the Hugging Face Trainer: class weights, accumulation, early stopping."""
import argparse
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)


class Tickets(Dataset):
    """Token sequences of log-normal length whose class shows in a few marker tokens."""

    def __init__(self, n, vocab, classes, max_len, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            length = int(np.clip(rng.lognormal(np.log(max_len / 2.5), 0.5), 12, max_len))
            label = int(min(rng.geometric(0.35) - 1, classes - 1))
            ids = rng.integers(1000, vocab, length)
            ids[0], ids[-1] = 101, 102
            ids[rng.integers(1, length - 1, 3)] = 200 + label
            self.rows.append({"input_ids": ids, "label": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def class_weights(self, classes):
        counts = np.bincount([r["label"] for r in self.rows], minlength=classes)
        return torch.tensor(counts.sum() / (classes * np.maximum(counts, 1)), dtype=torch.float)


def collate(rows, multiple=8):
    longest = max(len(r["input_ids"]) for r in rows)
    longest = (longest + multiple - 1) // multiple * multiple
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, :len(r["input_ids"])] = torch.as_tensor(r["input_ids"])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": torch.tensor([r["label"] for r in rows])}


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights.to(self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = F.cross_entropy(out.logits.float(), labels, weight=self.class_weights, label_smoothing=0.05)
        return (loss, out) if return_outputs else loss


def metrics(pred):
    guess, gold = pred.predictions.argmax(-1), pred.label_ids
    f1 = []
    for c in np.unique(gold):
        tp = ((guess == c) & (gold == c)).sum()
        f1.append(2 * tp / max((guess == c).sum() + (gold == c).sum(), 1))
    return {"accuracy": float((guess == gold).mean()), "macro_f1": float(np.mean(f1))}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(f"step {state.global_step}", {k: round(v, 4) for k, v in logs.items() if isinstance(v, float)})


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(hidden=768, layers=12, vocab=30522, classes=9, max_len=512, items=380, batch=32, accum=2, epochs=3).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    set_seed(17)
    torch.manual_seed(17)
    cfg = BertConfig(vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
                     intermediate_size=4 * args.hidden, max_position_embeddings=args.max_len, num_labels=args.classes)
    model = BertForSequenceClassification(cfg)
    train = Tickets(args.items, args.vocab, args.classes, args.max_len, 1)
    valid = Tickets(args.items // 4, args.vocab, args.classes, args.max_len, 2)
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out, num_train_epochs=args.epochs, per_device_train_batch_size=args.batch, per_device_eval_batch_size=2 * args.batch,
            gradient_accumulation_steps=args.accum, learning_rate=5e-5, weight_decay=0.01, warmup_steps=3, lr_scheduler_type="cosine",
            bf16=True, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True,
            metric_for_best_model="macro_f1", logging_steps=1, report_to=[], disable_tqdm=True, dataloader_num_workers=2,
            remove_unused_columns=False, seed=17)
        trainer = WeightedTrainer(model=model, args=targs, train_dataset=train, eval_dataset=valid, data_collator=collate,
                                  compute_metrics=metrics, class_weights=train.class_weights(args.classes),
                                  callbacks=[PrintLoss(), EarlyStoppingCallback(early_stopping_patience=1)])
        result = trainer.train()
        print(f"train loss {result.training_loss:.4f}")
        print("best", trainer.evaluate())


if __name__ == "__main__":
    main()
