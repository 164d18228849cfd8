"""Fine-tunes a small GPT-2 with the Hugging Face Trainer on texts of mixed lengths."""

import argparse
import random
import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, count, seed):
        generator = random.Random(seed)
        self.rows = [
            [generator.randrange(1, 20000) for _ in range(generator.randrange(64, 400))]
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": torch.tensor(self.rows[index])}


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = ids.masked_fill(ids == 0, -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20000, n_layer=6, n_embd=512, n_head=8))
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size, bf16=True, eval_strategy="steps",
            eval_steps=2, logging_steps=1, report_to=[], dataloader_num_workers=2,
            save_steps=3, warmup_steps=1, weight_decay=0.1, prediction_loss_only=True,
        )
        trainer = Trainer(
            model=model, args=options, data_collator=collate,
            train_dataset=Texts(64, 1), eval_dataset=Texts(16, 2),
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
