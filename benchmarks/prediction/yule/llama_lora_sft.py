"""LoRA instruction tuning of a bf16 Llama-like model: padded batches, checkpointing, accumulation, then sampling."""
import argparse
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

PAD, BOS, EOS = 0, 1, 2


def make_examples(n, vocab, lo, hi):
    out = []
    for _ in range(n):
        prompt = torch.randint(3, vocab, (int(torch.randint(lo, hi, (1,))),))
        answer = prompt.flip(0)[: max(4, len(prompt) // 2)]
        ids = torch.cat([torch.tensor([BOS]), prompt, answer, torch.tensor([EOS])])
        labels = ids.clone()
        labels[: len(prompt) + 1] = -100
        out.append((ids, labels))
    return out


def collate(rows):
    ids = pad_sequence([r[0] for r in rows], batch_first=True, padding_value=PAD)
    labels = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != PAD).long()}


def build(a):
    cfg = LlamaConfig(vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.hidden * 11 // 4,
                      num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.heads // 4,
                      max_position_embeddings=4096, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    torch.manual_seed(42)
    return LlamaForCausalLM(cfg).to(torch.bfloat16)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    tot, n = 0.0, 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        k = int((batch["labels"] != -100).sum())
        tot += model(**batch).loss.item() * k
        n += k
    model.train()
    return tot / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--hidden", type=int, default=1536)
    p.add_argument("--layers", type=int, default=14)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--max-prompt", type=int, default=900)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=7)
    p.add_argument("--new-tokens", type=int, default=48)
    a = p.parse_args()
    model = build(a).to(a.device)
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    for q in model.parameters():
        if q.requires_grad:
            q.data = q.data.float()
    model.print_trainable_parameters()
    train = DataLoader(make_examples(a.batch * a.accum * a.steps, a.vocab, a.max_prompt // 6, a.max_prompt),
                       batch_size=a.batch, shuffle=True, collate_fn=collate)
    dev = DataLoader(make_examples(a.batch * 3, a.vocab, a.max_prompt // 6, a.max_prompt),
                     batch_size=a.batch, collate_fn=collate)
    params = [q for q in model.parameters() if q.requires_grad]
    opt = torch.optim.AdamW(params, lr=2e-4)
    sched = get_linear_schedule_with_warmup(opt, 2, a.steps)
    model.train()
    run = 0.0
    for i, batch in enumerate(train):
        batch = {k: v.to(a.device) for k, v in batch.items()}
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = model(**batch).loss
        (loss / a.accum).backward()
        run += loss.item() / a.accum
        if (i + 1) % a.accum == 0:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            print(f"step {(i + 1) // a.accum} T {batch['input_ids'].size(1)} loss {run:.4f}")
            run = 0.0
    with torch.autocast(a.device, dtype=torch.bfloat16):
        print(f"dev loss {evaluate(model, dev, a.device):.4f}")

    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        del model, opt, params, loss, sched
        model = PeftModel.from_pretrained(build(a).to(a.device), tmp)
    model = model.merge_and_unload().eval()
    prompts = [r[0][: len(r[0]) // 2] for r in make_examples(a.batch * 2, a.vocab, a.max_prompt // 6, a.max_prompt)]
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), PAD)
    for row, pr in zip(ids, prompts):  # left padding
        row[width - len(pr):] = pr
    ids = ids.to(a.device)
    out = model.generate(input_ids=ids, attention_mask=(ids != PAD).long(), max_new_tokens=a.new_tokens,
                         do_sample=True, top_k=50, temperature=0.8, use_cache=True)
    print("generated", tuple(out.shape), "distinct", out[:, width:].unique().numel())


if __name__ == "__main__":
    main()
