"""Whisper fine-tuning in fp16 with a loss scaler, the encoder frozen for the first steps."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(2)
config = WhisperConfig(
    d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_ffn_dim=2048,
)
model = WhisperForConditionalGeneration(config).to("cuda")
for parameter in model.model.encoder.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")
for step in range(6):
    if step == 3:
        for name, parameter in model.model.encoder.named_parameters():
            parameter.requires_grad = "embed_positions" not in name
    features = torch.randn(6, 80, 3000, device="cuda")
    labels = torch.randint(0, 51000, (6, 120), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_features=features, labels=labels).loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, float(loss))
