"""Options, a file of text, a vocabulary, buckets by length, workers, pinned memory, a scaler, a resumed checkpoint."""

import argparse
import json
import os
import tempfile
from collections import Counter

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Lines(Dataset):
    def __init__(self, path, vocabulary):
        with open(path, encoding="utf-8") as file:
            self.rows = [[vocabulary.get(word, 1) for word in line.split()] for line in file]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids = torch.from_numpy(np.asarray(self.rows[index]))
        return ids[:-1], ids[1:]


def collate(rows):
    inputs, targets = zip(*rows)
    return pad_sequence(inputs, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=-100)


class Network(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, words)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.layers(self.embedding(ids), mask=mask, src_key_padding_mask=(ids == 0).float() * -1e9))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    folder = tempfile.mkdtemp()
    path = args.data or os.path.join(folder, "text.txt")
    if args.data is None:
        words = np.random.default_rng(0)
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(96):
                file.write(" ".join(f"w{n}" for n in words.integers(0, 900, words.integers(8, 60))) + "\n")
    with open(path, encoding="utf-8") as file:
        counts = Counter(file.read().split())
    vocabulary = {word: number + 2 for number, (word, _) in enumerate(counts.most_common(800))}
    data = Lines(path, vocabulary)
    loader = DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data), args.batch_size, False), collate_fn=collate,
        num_workers=args.workers, pin_memory=True, persistent_workers=args.workers > 0,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Network(len(vocabulary) + 2, args.width, 2).to(device)
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=3e-4), torch.amp.GradScaler(device.type)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    for epoch in range(2):
        for inputs, targets in loader:
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.float16):
                loss = criterion(model(inputs).flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, os.path.join(folder, "last.pt"))
    kept = torch.load(os.path.join(folder, "last.pt"), map_location=device)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    print(json.dumps({"epoch": kept["epoch"], "loss": loss.item(), "memory": torch.cuda.max_memory_allocated() >> 20}))


if __name__ == "__main__":
    main()
