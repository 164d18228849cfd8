"""BART from scratch with Seq2SeqTrainer: the 'summary' lists the distinct marked tokens of a document. Beam-search evaluation."""
import os
import random

import numpy as np
import torch
from transformers import (BartConfig, BartForConditionalGeneration, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments,
                          set_seed)

VOCAB, PAD, BOS, EOS, MARK = 12000, 0, 1, 2, 3
SCALE = float(os.environ.get("SCALE", "1"))
STEPS = int(os.environ.get("STEPS", "36"))


class Documents(torch.utils.data.Dataset):
    def __init__(self, n, lo, hi, seed):
        self.items = []
        rng = random.Random(seed)
        for _ in range(n):
            doc, summary = [], []
            for _ in range(rng.randint(lo, hi)):
                tok = rng.randint(4, VOCAB - 1)
                if rng.random() < 0.12:
                    doc.append(MARK)
                    summary.append(tok)
                doc.append(tok)
            self.items.append({"input_ids": [BOS] + doc[:hi] + [EOS], "labels": summary[:48] + [EOS]})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(features):
    src = max(len(f["input_ids"]) for f in features)
    tgt = max(len(f["labels"]) for f in features)
    src = (src + 7) // 8 * 8
    ids = torch.full((len(features), src), PAD)
    labels = torch.full((len(features), tgt), -100)
    for i, f in enumerate(features):
        ids[i, :len(f["input_ids"])] = torch.tensor(f["input_ids"])
        labels[i, :len(f["labels"])] = torch.tensor(f["labels"])
    dec = labels.new_full(labels.shape, EOS)                # the label smoother takes the labels away from the model
    dec[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels, "decoder_input_ids": dec}


def metrics(pred):
    ids, labels = pred
    ids = ids[0] if isinstance(ids, tuple) else ids
    scores = []
    for p, l in zip(ids, labels):
        a, b = {int(t) for t in p if t > MARK}, {int(t) for t in l if t > MARK}
        scores.append(2 * len(a & b) / max(1, len(a) + len(b)))
    return {"f1": float(np.mean(scores)), "gen_len": float(np.mean([(p != PAD).sum() for p in ids]))}


def main():
    set_seed(7)
    batch = max(1, round(24 * SCALE))
    config = BartConfig(vocab_size=VOCAB, d_model=512, encoder_layers=5, decoder_layers=5, encoder_attention_heads=8,
                        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, max_position_embeddings=512,
                        dropout=0.1, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=EOS,
                        forced_eos_token_id=EOS)
    model = BartForConditionalGeneration(config)
    model.generation_config = GenerationConfig(max_length=50, num_beams=4, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
                                               decoder_start_token_id=EOS, early_stopping=True)
    args = Seq2SeqTrainingArguments(
        output_dir="/tmp/bart_summaries", max_steps=STEPS, per_device_train_batch_size=batch,
        per_device_eval_batch_size=2 * batch, gradient_accumulation_steps=1, learning_rate=3e-4, warmup_steps=5,
        label_smoothing_factor=0.1, max_grad_norm=0.5, logging_steps=max(1, STEPS // 4), eval_strategy="steps",
        eval_steps=max(1, STEPS // 2), predict_with_generate=True, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_num_workers=0, seed=7)
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=Documents(STEPS * batch, 80, 320, 1),
                             eval_dataset=Documents(3 * batch, 80, 320, 2), data_collator=collate, compute_metrics=metrics)
    result = trainer.train()
    print(f"train loss {result.training_loss:.4f}")
    out = trainer.predict(Documents(batch, 200, 320, 3), max_length=40, num_beams=2)
    print("predictions", out.predictions.shape, {k: round(v, 4) for k, v in out.metrics.items() if "loss" in k or "f1" in k})
    if torch.cuda.is_available():
        print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
