"""Llama in bf16 weights with gradient checkpointing, accumulation and a prompt that is masked out."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(5)
config = LlamaConfig(
    hidden_size=1280, intermediate_size=3456, num_hidden_layers=10, num_attention_heads=20, num_key_value_heads=4,
    vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True,
)
model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
model.config.use_cache = False
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, foreach=True)
for step in range(4):
    for micro in range(2):
        ids = torch.randint(0, 49152, (3, 1536), device="cuda")
        labels = ids.clone()
        labels[:, :256] = -100
        loss = model(input_ids=ids, labels=labels).loss / 2
        loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item(), norm.item())
