"""Distilling a T5 into a shallow one with the Seq2SeqTrainer: soft targets, accumulation, Adafactor, bf16, beam evaluation."""
import argparse
import copy
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed

VOCAB = 32128


class RewriteTask(Dataset):
    """Source: tokens with filler; target: the tokens without it, ended by 1. Lengths differ from record to record."""

    def __init__(self, n, seed, longest):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            src = rng.integers(100, VOCAB, size=int(rng.integers(longest // 4, longest)))
            keep = src[src % 3 != 0][: longest // 2]
            self.rows.append({"input_ids": np.append(src, 1), "labels": np.append(keep, 1)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class PadCollator:
    def __init__(self, multiple=8):
        self.multiple = multiple

    def pad(self, seqs, value):
        longest = -(-max(map(len, seqs)) // self.multiple) * self.multiple
        return torch.stack([F.pad(torch.as_tensor(s), (0, longest - len(s)), value=value) for s in seqs])

    def __call__(self, rows):
        ids = self.pad([r["input_ids"] for r in rows], 0)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": self.pad([r["labels"] for r in rows], -100)}


class DistillTrainer(Seq2SeqTrainer):
    def __init__(self, *a, teacher, temperature, alpha, **kw):
        super().__init__(*a, **kw)
        self.teacher = teacher.to(self.args.device).eval().requires_grad_(False)
        self.temperature, self.alpha = temperature, alpha
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        with torch.no_grad():
            soft = self.teacher(**inputs).logits
        mask = inputs["labels"] != -100
        t = self.temperature
        student = F.log_softmax(outputs.logits[mask].float() / t, -1)
        target = F.log_softmax(soft[mask].float() / t, -1)
        kl = F.kl_div(student, target, reduction="batchmean", log_target=True) * t * t
        loss = self.alpha * kl + (1 - self.alpha) * outputs.loss
        return (loss, outputs) if return_outputs else loss


def t5(d_model, d_ff, layers, heads):
    return T5Config(vocab_size=VOCAB, d_model=d_model, d_ff=d_ff, d_kv=64, num_layers=layers, num_decoder_layers=layers,
                    num_heads=heads, feed_forward_proj="gated-gelu", tie_word_embeddings=True, dropout_rate=0.05,
                    pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)


def shallow_copy(teacher, config, every):
    student_config = copy.deepcopy(config)
    student_config.num_layers = student_config.num_decoder_layers = config.num_layers // every
    student = T5ForConditionalGeneration(student_config)
    student.shared.load_state_dict(teacher.shared.state_dict())
    for side in ("encoder", "decoder"):
        for i, block in enumerate(getattr(student, side).block):
            block.load_state_dict(getattr(teacher, side).block[i * every].state_dict(), strict=False)
    return student


def token_accuracy(pred):
    guess, label = pred.predictions[:, 1:], pred.label_ids
    n = min(guess.shape[1], label.shape[1])
    mask = label[:, :n] != -100
    return {"token_accuracy": float((guess[:, :n] == label[:, :n])[mask].mean())}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--d-model", type=int, default=640)
    p.add_argument("--d-ff", type=int, default=1792)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--heads", type=int, default=10)
    p.add_argument("--keep-every", type=int, default=3)
    p.add_argument("--batch", type=int, default=18)
    p.add_argument("--longest", type=int, default=210)
    p.add_argument("--records", type=int, default=900)
    p.add_argument("--max-steps", type=int, default=16)
    args = p.parse_args()
    set_seed(99)

    config = t5(args.d_model, args.d_ff, args.layers, args.heads)
    teacher = T5ForConditionalGeneration(config)
    student = shallow_copy(teacher, config, args.keep_every)
    student.generation_config.min_new_tokens = 40
    print(f"teacher {teacher.num_parameters() / 1e6:.0f}M, student {student.num_parameters() / 1e6:.0f}M")

    with tempfile.TemporaryDirectory() as folder:
        training = Seq2SeqTrainingArguments(
            output_dir=folder, max_steps=args.max_steps, per_device_train_batch_size=args.batch,
            per_device_eval_batch_size=24, gradient_accumulation_steps=3, learning_rate=3e-4, optim="adafactor",
            lr_scheduler_type="linear", warmup_steps=3, bf16=True, max_grad_norm=1.0, logging_steps=4,
            eval_strategy="steps", eval_steps=args.max_steps // 2, save_strategy="steps", save_steps=args.max_steps // 2,
            save_total_limit=1, predict_with_generate=True, generation_num_beams=2, generation_max_length=48,
            dataloader_num_workers=0, report_to=[], seed=99, disable_tqdm=True)
        assert training.device.type == "cuda"
        trainer = DistillTrainer(
            model=student, args=training, train_dataset=RewriteTask(args.records, 1, args.longest),
            eval_dataset=RewriteTask(60, 2, args.longest), data_collator=PadCollator(), compute_metrics=token_accuracy,
            teacher=teacher, temperature=2.0, alpha=0.7)
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
