"""Sentence classification with Accelerate: accumulation, clipping, a schedule, evaluation."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def data(count):
    ids = torch.randint(5, 30000, (count, 256))
    lengths = torch.randint(40, 256, (count,))
    mask = (torch.arange(256)[None] < lengths[:, None]).long()
    return TensorDataset(ids * mask, mask, torch.randint(0, 3, (count,)))


def main():
    set_seed(42)
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=4, num_labels=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    train = DataLoader(data(96), batch_size=16, shuffle=True)
    evaluation = DataLoader(data(40), batch_size=32)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)
    model, optimizer, train, evaluation, schedule = accelerator.prepare(
        model, optimizer, train, evaluation, schedule
    )
    for epoch in range(2):
        model.train()
        total = 0.0
        for ids, mask, labels in tqdm(train, disable=not accelerator.is_local_main_process):
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
                total += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        correct = seen = 0
        for ids, mask, labels in evaluation:
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=mask).logits
            predictions, labels = accelerator.gather_for_metrics((logits.argmax(-1), labels))
            correct += (predictions == labels).sum().item()
            seen += len(labels)
        accelerator.print(f"epoch {epoch}: loss {total / len(train):.4f} accuracy {correct / seen:.3f}")


if __name__ == "__main__":
    main()
