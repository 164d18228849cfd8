"""A TrainerCallback keeps the model's hidden states of each step, in Hugging Face's loop: https://github.com/huggingface/transformers/issues/7232"""

import os
import tempfile

import torch
import transformers

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["kept"], "bytes_per_step": 4 * 8 * 64 * 128}],
    "needs": ["transformers", "accelerate"],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Model(torch.nn.Module):
    """A language model small enough for a test; it remembers its last hidden states."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer = torch.nn.Embedding(50, 128), torch.nn.Linear(128, 128)
        self.head = torch.nn.Linear(128, 50)
        self.last_hidden = None

    def forward(self, input_ids, labels):
        hidden = torch.relu(self.layer(self.embed(input_ids)))
        self.last_hidden = hidden.detach().clone()  # ALLOCATES
        loss = torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
        return {"loss": loss}


class KeepHidden(transformers.TrainerCallback):
    def __init__(self, watch):
        self.watch, self.kept, self.steps = watch, [], []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append(state.global_step)
        self.kept.append(model.last_hidden)  # KEEPS
        # FIX: self.kept[:] = [model.last_hidden]
        self.watch.step()


def main(folder):
    ids = torch.randint(0, 50, (8 * 14, 64))
    watch = vramlens.LeakWatch()
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=14,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[KeepHidden(watch)],
    )
    trainer.train()
    return watch.report()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        report = main(folder)
