"""Hugging Face Trainer: evaluation with metrics, gradient accumulation, a collator, two epochs."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Reviews(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = [
            {"ids": torch.randint(5, 8000, (20 + number % 100,), generator=generator), "label": number % 3}
            for number in range(count)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row["label"] for row in rows])}


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print({key: round(number, 3) for key, number in logs.items() if "loss" in key})


def metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


config = BertConfig(vocab_size=8000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, num_labels=3)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=8, per_device_eval_batch_size=16,
        gradient_accumulation_steps=2, eval_strategy="epoch", save_strategy="epoch", logging_steps=2,
        load_best_model_at_end=True, metric_for_best_model="accuracy", report_to=[], remove_unused_columns=False,
        warmup_steps=2, max_grad_norm=1.0,
    )
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, data_collator=collate, train_dataset=Reviews(48, 0),
        eval_dataset=Reviews(24, 1), compute_metrics=metrics, callbacks=[PrintLosses()],
    )
    trainer.train()
    print(trainer.evaluate())
    print(trainer.predict(Reviews(8, 2)).predictions.shape)
    trainer.save_model()
