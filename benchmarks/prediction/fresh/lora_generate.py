"""LoRA on a small Llama with gradient checkpointing, then generation with a key-value cache."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
    num_key_value_heads=8, vocab_size=32000,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
model = get_peft_model(
    model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear")
)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
model.train()
for step in range(3):
    ids = torch.randint(3, 32000, (4, 1024), device="cuda")
    labels = ids.clone()
    labels[:, :128] = -100
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f} perplexity {torch.exp(loss).item():.1f}")
model.eval()
with torch.no_grad():
    out = model.generate(
        input_ids=torch.randint(3, 32000, (2, 64), device="cuda"), max_new_tokens=16, do_sample=True,
        temperature=0.8, top_p=0.95, pad_token_id=0,
    )
print(out.shape, f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
