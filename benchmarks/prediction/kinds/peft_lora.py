"""peft: LoRA on a Llama in bf16 with checkpointing, then merged and used for generation."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=4000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).to("cuda")
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
model.print_trainable_parameters()
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=2e-4)
for step in range(3):
    ids = torch.randint(0, 4000, (4, 96), device="cuda")
    mask = torch.ones_like(ids)
    mask[:, 80:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
merged = model.merge_and_unload().eval()
with torch.no_grad():
    print(merged.generate(torch.randint(0, 4000, (2, 8), device="cuda"), max_new_tokens=6, do_sample=False).shape)
