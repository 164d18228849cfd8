"""Generation with a key-value cache: greedy, sampled and by beams, padded prompts."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=3000, n_positions=128, n_embd=128, n_layer=3, n_head=4, pad_token_id=0, eos_token_id=1, bos_token_id=2)
model = GPT2LMHeadModel(config).eval().cuda()
prompts = torch.randint(3, 3000, (4, 12))
prompts[0, :5] = 0
mask = (prompts != 0).long()
inputs = {"input_ids": prompts.cuda(), "attention_mask": mask.cuda()}
with torch.inference_mode():
    for options in (
        {"do_sample": False},
        {"do_sample": True, "top_k": 50, "top_p": 0.9, "temperature": 0.8},
        {"num_beams": 3, "early_stopping": True, "length_penalty": 0.8},
    ):
        print(model.generate(**inputs, max_new_tokens=12, **options).shape)
    past, ids = None, inputs["input_ids"]
    for _ in range(8):
        answer = model(ids, past_key_values=past, use_cache=True)
        past, ids = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
print(past.get_seq_length())
