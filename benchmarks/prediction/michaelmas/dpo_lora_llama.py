"""DPO with a LoRA adapter on a Llama-shaped model; the reference is the same model with the adapter switched off."""
import argparse

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup


def build_model(a):
    cfg = LlamaConfig(vocab_size=a.vocab, hidden_size=a.dim, intermediate_size=int(a.dim * 2.75) // 16 * 16,
                      num_hidden_layers=a.layers, num_attention_heads=a.dim // 64, num_key_value_heads=a.dim // 128,
                      max_position_embeddings=2048, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1,
                      eos_token_id=2)
    model = LlamaForCausalLM(cfg).to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM",
                      target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    model = get_peft_model(model, lora)
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.float()
    return model


def preference_batch(n, vocab, max_prompt, max_answer, g):
    seqs, masks = [], []
    prompts = [torch.randint(3, vocab, (int(torch.randint(max_prompt // 2, max_prompt, (1,), generator=g)),),
                             generator=g) for _ in range(n)]
    for _ in ("chosen", "rejected"):
        for p in prompts:
            m = int(torch.randint(max_answer // 4, max_answer, (1,), generator=g))
            ans = torch.randint(3, vocab, (m,), generator=g)
            seqs.append(torch.cat([p, ans]))
            masks.append(torch.cat([torch.zeros(len(p)), torch.ones(m)]))
    ids = pad_sequence(seqs, batch_first=True)
    return ids, (ids != 0).long(), pad_sequence(masks, batch_first=True)


def sequence_logps(model, ids, attn, answer):
    logits = model(input_ids=ids, attention_mask=attn, use_cache=False).logits[:, :-1]
    tgt, mask = ids[:, 1:], answer[:, 1:]
    picked = logits.gather(-1, tgt.unsqueeze(-1)).squeeze(-1).float()
    logp = picked - torch.logsumexp(logits.float(), -1)
    return (logp * mask).sum(-1)


def dpo_loss(pol, ref, beta=0.1):
    pc, pr = pol.chunk(2)
    rc, rr = ref.chunk(2)
    margin = beta * ((pc - rc) - (pr - rr))
    return -F.logsigmoid(margin).mean(), (margin > 0).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--dim", type=int, default=1536)
    ap.add_argument("--layers", type=int, default=14)
    ap.add_argument("--pairs", type=int, default=4)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--prompt", type=int, default=300)
    ap.add_argument("--answer", type=int, default=500)
    ap.add_argument("--steps", type=int, default=4)
    ap.add_argument("--new-tokens", type=int, default=40)
    a = ap.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = build_model(a).to("cuda")
    model.print_trainable_parameters()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(opt, 1, a.steps)
    model.train()
    for step in range(a.steps):
        running = 0.0
        for _ in range(a.accum):
            ids, attn, ans = (t.to("cuda") for t in preference_batch(a.pairs, a.vocab, a.prompt, a.answer, g))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                with torch.no_grad(), model.disable_adapter():
                    ref = sequence_logps(model, ids, attn, ans)
                pol = sequence_logps(model, ids, attn, ans)
            loss, acc = dpo_loss(pol, ref)
            (loss / a.accum).backward()
            running += loss.item() / a.accum
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {running:.4f} acc {acc.item():.2f} tokens {ids.shape[1]}")

    model.eval()
    model.gradient_checkpointing_disable()
    prompt = torch.randint(3, a.vocab, (16, 128), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=50,
                             max_new_tokens=a.new_tokens, min_new_tokens=a.new_tokens, use_cache=True)
    print("sampled", tuple(out.shape))


if __name__ == "__main__":
    main()
