"""Named-entity tagging with BERT and the Trainer; class-weighted loss, dynamic padding."""
import argparse
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-DATE", "I-DATE"]


class TagDataset(Dataset):
    def __init__(self, size, vocab_size, max_len, seed):
        self.size, self.vocab_size, self.max_len, self.seed = size, vocab_size, max_len, seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, index))
        length = int(np.clip(rng.normal(self.max_len * 0.7, self.max_len * 0.25), 12, self.max_len))
        ids = rng.integers(5, self.vocab_size, size=length)
        labels = np.where(ids % 7 == 0, ids % len(TAGS), 0)
        ids[0], ids[-1] = 2, 3
        labels[0] = labels[-1] = -100
        return {"input_ids": ids, "labels": labels}


@dataclass
class PadCollator:
    pad_id: int = 0
    multiple: int = 16

    def __call__(self, features):
        width = max(len(f["input_ids"]) for f in features)
        width = -(-width // self.multiple) * self.multiple
        ids = torch.full((len(features), width), self.pad_id, dtype=torch.long)
        labels = torch.full((len(features), width), -100, dtype=torch.long)
        mask = torch.zeros((len(features), width), dtype=torch.long)
        for row, f in enumerate(features):
            n = len(f["input_ids"])
            ids[row, :n] = torch.as_tensor(f["input_ids"])
            labels[row, :n] = torch.as_tensor(f["labels"])
            mask[row, :n] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        criterion = nn.CrossEntropyLoss(weight=self.class_weights.to(labels.device), ignore_index=-100)
        loss = criterion(outputs.logits.float().view(-1, len(TAGS)), labels.view(-1))
        return (loss, outputs) if return_outputs else loss


def keep_argmax(logits, labels):
    return logits.argmax(dim=-1)


def metrics(eval_pred):
    predictions, labels = eval_pred
    keep = labels != -100
    predictions, labels = predictions[keep], labels[keep]
    entity = labels != 0
    hit = ((predictions == labels) & entity).sum()
    precision = hit / max(1, (predictions != 0).sum())
    recall = hit / max(1, entity.sum())
    return {"accuracy": float((predictions == labels).mean()),
            "f1": float(2 * precision * recall / max(1e-9, precision + recall))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab_size", type=int, default=28996)
    parser.add_argument("--hidden_size", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--max_len", type=int, default=384)
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--max_steps", type=int, default=40)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    args = parser.parse_args()

    set_seed(2024)
    assert torch.cuda.is_available(), "this training needs a GPU"
    config = BertConfig(vocab_size=args.vocab_size, hidden_size=args.hidden_size, num_hidden_layers=args.layers,
                        num_attention_heads=args.hidden_size // 64, intermediate_size=4 * args.hidden_size,
                        num_labels=len(TAGS), id2label=dict(enumerate(TAGS)),
                        label2id={t: i for i, t in enumerate(TAGS)})
    model = BertForTokenClassification(config)
    weights = torch.ones(len(TAGS))
    weights[1:] = 4.0

    train_set = TagDataset(args.batch_size * args.accumulate * args.max_steps, args.vocab_size, args.max_len, 1)
    eval_set = TagDataset(args.batch_size * 8, args.vocab_size, args.max_len, 2)

    with tempfile.TemporaryDirectory() as out:
        training_args = TrainingArguments(
            output_dir=out,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size * 2,
            gradient_accumulation_steps=args.accumulate,
            learning_rate=args.learning_rate,
            weight_decay=0.01,
            lr_scheduler_type="cosine",
            warmup_steps=6,
            max_grad_norm=1.0,
            bf16=True,
            eval_strategy="steps",
            eval_steps=args.max_steps // 2,
            save_strategy="no",
            logging_steps=5,
            dataloader_num_workers=2,
            report_to="none",
            disable_tqdm=True,
            seed=2024,
        )
        trainer = WeightedTrainer(
            model=model,
            args=training_args,
            train_dataset=train_set,
            eval_dataset=eval_set,
            data_collator=PadCollator(),
            compute_metrics=metrics,
            preprocess_logits_for_metrics=keep_argmax,
            class_weights=weights,
        )
        result = trainer.train()
        print({k: round(v, 4) for k, v in result.metrics.items()})
        final = trainer.evaluate()
        print("final", {k: round(v, 4) for k, v in final.items()})


if __name__ == "__main__":
    main()
