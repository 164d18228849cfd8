import os

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments,
                          default_data_collator, set_seed)

tiny = os.environ.get("TINY") == "1"
scale = float(os.environ.get("SCALE", "1"))


class SyntheticCLM(Dataset):
    """Each sample is a noisy periodic sequence."""

    def __init__(self, n, length, vocab, seed):
        rng = np.random.default_rng(seed)
        self.samples = []
        for _ in range(n):
            period = int(rng.integers(3, 24))
            motif = rng.integers(5, vocab, period)
            ids = np.tile(motif, length // period + 1)[:length]
            noise = rng.random(length) < 0.1
            ids[noise] = rng.integers(5, vocab, int(noise.sum()))
            self.samples.append(ids.astype(np.int64))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        ids = torch.from_numpy(self.samples[i])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = logits[:, :-1].argmax(-1)
    labels = labels[:, 1:]
    mask = labels != -100
    return {"accuracy": float((preds[mask] == labels[mask]).mean())}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")
        if logs and "eval_loss" in logs:
            print(f"step {state.global_step} eval_loss {logs['eval_loss']:.4f} acc {logs['eval_accuracy']:.4f}")


def main():
    set_seed(42)
    vocab = 500 if tiny else 16000
    seq_len = 32 if tiny else 256
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=64 if tiny else 512,
        intermediate_size=128 if tiny else 1408,
        num_hidden_layers=2 if tiny else 6,
        num_attention_heads=4 if tiny else 8,
        num_key_value_heads=2 if tiny else 4,
        max_position_embeddings=1024,
        use_cache=False,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen2ForCausalLM(config)
    print("params:", model.num_parameters())

    train_ds = SyntheticCLM(64 if tiny else 512, seq_len, vocab, seed=0)
    eval_ds = SyntheticCLM(8 if tiny else 112, seq_len, vocab, seed=1)

    args = TrainingArguments(
        output_dir="/tmp/hf_trainer_clm_out",
        max_steps=14,
        per_device_train_batch_size=max(1, round((2 if tiny else 16) * scale)),
        per_device_eval_batch_size=max(1, round((2 if tiny else 16) * scale)),
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        optim="adafactor",
        bf16=torch.cuda.is_available(),
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=7,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        seed=42,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=train_ds,
        eval_dataset=eval_ds,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        callbacks=[PrintLoss()],
    )
    out = trainer.train()
    print(f"train loss {out.training_loss:.4f}")
    print("done")


if __name__ == "__main__":
    main()
