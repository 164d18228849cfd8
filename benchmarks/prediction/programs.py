"""Programs to predict, then to measure: NAME trains a few steps, ``--measure FILE`` notes PyTorch's
peaks.

    vramlens predict --json --torch 2.11 programs.py -- NAME      # without a GPU
    python programs.py NAME --measure NAME.json                   # on one

None of them was used to find a rule.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

PROGRAMS: dict[str, Callable[[], None]] = {}
DEVICE = "cuda"
STEPS = 3


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a program by its name."""
    PROGRAMS[function.__name__] = function
    return function


def train(
    model: nn.Module,
    loss_of: Callable[[int], Any],
    *,
    optimizer: Any = None,
    dtype: torch.dtype | None = None,
    scaled: bool = False,
    accumulate: int = 1,
    clip: float | None = None,
    set_to_none: bool = True,
) -> None:
    """A plain training loop."""
    if optimizer is None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE, enabled=scaled)
    for step in range(STEPS):
        for part in range(accumulate):
            with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(step * accumulate + part)
            scaler.scale(loss / accumulate).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=set_to_none)
        print(step, loss.item())


def tokens(batch: int, length: int, vocabulary: int = 30000) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), device=DEVICE)


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=768, n_head=12, **changes)).to(DEVICE)


def language_loss(model: Any, batch: int, length: int) -> Callable[[int], Any]:
    def loss(_: int) -> Any:
        ids = tokens(batch, length)
        return model(input_ids=ids, labels=ids).loss

    return loss


@program
def gpt2_fp32() -> None:
    model = gpt2()
    train(model, language_loss(model, 6, 512))


@program
def gpt2_bf16() -> None:
    model = gpt2()
    train(model, language_loss(model, 8, 640), dtype=torch.bfloat16, clip=1.0)


@program
def gpt2_fp16_eager() -> None:
    model = gpt2(attn_implementation="eager")
    train(model, language_loss(model, 4, 768), dtype=torch.float16, scaled=True)


@program
def gpt2_accumulate() -> None:
    model = gpt2()
    train(model, language_loss(model, 3, 512), accumulate=3, set_to_none=False)


@program
def gpt2_fused() -> None:
    model = gpt2()
    train(
        model,
        language_loss(model, 5, 384),
        optimizer=torch.optim.AdamW(model.parameters(), fused=True),
    )


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
                         num_key_value_heads=4, vocab_size=32000, **changes)  # fmt: skip
    return LlamaForCausalLM(config)


@program
def llama_bf16_weights() -> None:
    model = llama().to(DEVICE, torch.bfloat16)
    train(model, language_loss(model, 4, 1024))


@program
def llama_checkpointed() -> None:
    model = llama().to(DEVICE)
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.train()
    train(model, language_loss(model, 4, 1024), dtype=torch.bfloat16)


@program
def llama_lora() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        llama().to(DEVICE), LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
    )
    train(model, language_loss(model, 3, 768), dtype=torch.bfloat16)


def bert_loss(model: Any, batch: int, length: int) -> Callable[[int], Any]:
    def loss(step: int) -> Any:
        ids = tokens(batch, length)
        lengths = torch.arange(batch, device=DEVICE) * (length // (2 * batch)) + length // 2
        mask = (torch.arange(length, device=DEVICE)[None] < lengths[:, None]).long()
        return model(input_ids=ids, attention_mask=mask, labels=ids).loss

    return loss


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(num_hidden_layers=6)).to(DEVICE)


@program
def bert_fp32() -> None:
    model = bert()
    train(model, bert_loss(model, 12, 384))


@program
def bert_fp16() -> None:
    model = bert()
    train(model, bert_loss(model, 16, 384), dtype=torch.float16, scaled=True)


@program
def t5_fp32() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(num_layers=4, num_decoder_layers=4, decoder_start_token_id=0)
    ).to(DEVICE)

    def loss(_: int) -> Any:
        return model(input_ids=tokens(12, 384), labels=tokens(12, 192)).loss

    train(model, loss, optimizer=torch.optim.Adam(model.parameters(), foreach=False))


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_hidden_layers=6, num_labels=100)).to(DEVICE)


def image_loss(model: Any, batch: int, size: int) -> Callable[[int], Any]:
    def loss(_: int) -> Any:
        images = torch.randn(batch, 3, size, size, device=DEVICE)
        return model(
            pixel_values=images, labels=torch.randint(0, 100, (batch,), device=DEVICE)
        ).loss

    return loss


@program
def vit_bf16() -> None:
    model = vit()
    train(model, image_loss(model, 48, 224), dtype=torch.bfloat16)


@program
def vit_sgd() -> None:
    model = vit()
    train(
        model,
        image_loss(model, 24, 224),
        optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


@program
def whisper_bf16() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(WhisperConfig(encoder_layers=4, decoder_layers=4)).to(
        DEVICE
    )

    def loss(_: int) -> Any:
        return model(
            input_features=torch.randn(4, 80, 3000, device=DEVICE), labels=tokens(4, 96)
        ).loss

    train(model, loss, dtype=torch.bfloat16)


@program
def resnet_fp32() -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=100)).to(DEVICE)
    train(
        model,
        image_loss(model, 32, 224),
        optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


@program
def convnext_bf16() -> None:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    model = ConvNextForImageClassification(ConvNextConfig(num_labels=100)).to(DEVICE)
    train(model, image_loss(model, 24, 224), dtype=torch.bfloat16)


@program
def segformer_fp32() -> None:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=20)).to(DEVICE)

    def loss(_: int) -> Any:
        labels = torch.randint(0, 20, (4, 384, 384), device=DEVICE)
        return model(pixel_values=torch.randn(4, 3, 384, 384, device=DEVICE), labels=labels).loss

    train(model, loss)


@program
def yolos_fp32() -> None:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(image_size=[320, 320], num_hidden_layers=6, num_labels=20, hidden_size=384,
                         num_attention_heads=6, intermediate_size=1536)  # fmt: skip
    model = YolosForObjectDetection(config).to(DEVICE)

    def loss(_: int) -> Any:
        boxes = [{"class_labels": torch.randint(0, 20, (5,), device=DEVICE),
                  "boxes": torch.rand(5, 4, device=DEVICE) * 0.3 + 0.2} for _ in range(6)]  # fmt: skip
        return model(pixel_values=torch.randn(6, 3, 320, 320, device=DEVICE), labels=boxes).loss

    train(model, loss)


class UNet(nn.Module):
    """Four levels, with transposed convolutions up."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(
            self.block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2)
            for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.up = nn.ModuleList(self.block(2 * a, a) for a in widths[-2::-1])
        self.last = nn.Conv2d(width, 4, 1)

    @staticmethod
    def block(first: int, second: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(first, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU(inplace=True),
            nn.Conv2d(second, second, 3, padding=1), nn.BatchNorm2d(second), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([kept.pop(), rise(x)], 1))
        return self.last(x)


def unet_loss(model: nn.Module, batch: int, size: int) -> Callable[[int], Any]:
    def loss(_: int) -> Any:
        labels = torch.randint(0, 4, (batch, size, size), device=DEVICE)
        return F.cross_entropy(model(torch.randn(batch, 3, size, size, device=DEVICE)), labels)

    return loss


@program
def unet_fp32() -> None:
    model = UNet().to(DEVICE)
    train(model, unet_loss(model, 8, 256))


@program
def unet_fp16() -> None:
    model = UNet().to(DEVICE)
    train(model, unet_loss(model, 12, 256), dtype=torch.float16, scaled=True)


@program
def lstm_fp32() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layers = (
                nn.Embedding(20000, 512),
                nn.LSTM(512, 1024, 2, batch_first=True),
            )
            self.head = nn.Linear(1024, 20000)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.words(ids))[0])

    model = Words().to(DEVICE)

    def loss(_: int) -> Any:
        ids = tokens(32, 128, 20000)
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    train(model, loss, clip=1.0)


@program
def gnn_fp32() -> None:
    from torch_geometric.nn import GATConv, SAGEConv

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv(128, 256), GATConv(256, 64, heads=4)
            self.last = SAGEConv(256, 40)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.first(x, edges))
            return self.last(F.elu(self.second(x, edges)), edges)

    model = Graph().to(DEVICE)
    edges = torch.randint(0, 40000, (2, 400000), device=DEVICE)
    x, y = torch.randn(40000, 128, device=DEVICE), torch.randint(0, 40, (40000,), device=DEVICE)
    train(model, lambda _: F.cross_entropy(model(x, edges), y))


@program
def gp_fp32() -> None:
    import gpytorch

    x = torch.rand(2000, 4, device=DEVICE)
    y = torch.sin(x.sum(-1))

    class Process(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=4))

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    model = Process(likelihood).to(DEVICE)
    model.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def loss(_: int) -> Any:
        with gpytorch.settings.fast_computations(
            log_prob=False, solves=False, covar_root_decomposition=False
        ):
            return -marginal(model(x), y)

    train(model, loss)


@program
def ode_fp32() -> None:
    from torchdiffeq import odeint

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256))

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.net(y)

    model = Flow().to(DEVICE)
    times = torch.linspace(0, 1, 9, device=DEVICE)
    train(
        model,
        lambda _: (
            odeint(model, torch.randn(4096, 256, device=DEVICE), times, method="rk4")
            .square()
            .mean()
        ),
    )


@program
def trainer_bf16() -> None:
    from transformers import Trainer, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(0, 30000, (256,))
            return {"input_ids": ids, "labels": ids}

    options = TrainingArguments(
        "trainer-out", max_steps=STEPS, per_device_train_batch_size=8, bf16=True, report_to=[], save_strategy="no",
        logging_steps=1, gradient_accumulation_steps=2,
    )  # fmt: skip
    Trainer(model=gpt2(), args=options, train_dataset=Rows()).train()


def vision_loss(
    model: nn.Module, batch: int, size: int, pick: Callable[[Any], Any]
) -> Callable[[int], Any]:
    def loss(_: int) -> Any:
        output = pick(model(torch.randn(batch, 3, size, size, device=DEVICE)))
        labels = torch.randint(0, 20, (batch, *output.shape[2:]), device=DEVICE)
        return F.cross_entropy(output, labels)

    return loss


@program
def torchvision_resnet50() -> None:
    from torchvision.models import resnet50

    model = resnet50(num_classes=20).to(DEVICE)
    train(
        model,
        vision_loss(model, 40, 224, lambda output: output),
        optimizer=torch.optim.Adam(model.parameters()),
    )


@program
def torchvision_resnet50_bf16() -> None:
    from torchvision.models import resnet50

    model = resnet50(num_classes=20).to(DEVICE, memory_format=torch.channels_last)
    train(model, vision_loss(model, 48, 224, lambda output: output), dtype=torch.bfloat16)


@program
def torchvision_segmentation() -> None:
    from torchvision.models.segmentation import fcn_resnet50

    model = fcn_resnet50(num_classes=20, weights=None, weights_backbone=None).to(DEVICE)
    train(model, vision_loss(model, 6, 320, lambda output: output["out"]))


@program
def torchvision_detector() -> None:
    from torchvision.models.detection import retinanet_resnet50_fpn

    model = retinanet_resnet50_fpn(num_classes=20, weights=None, weights_backbone=None).to(DEVICE)

    def loss(_: int) -> Any:
        images = [torch.rand(3, 400, 400, device=DEVICE) for _ in range(2)]
        corner = torch.rand(4, 2, device=DEVICE) * 200
        boxes = torch.cat([corner, corner + 100], 1)
        labels = torch.randint(1, 20, (4,), device=DEVICE)
        return sum(model(images, [{"boxes": boxes, "labels": labels}] * 2).values())

    train(model, loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(PROGRAMS))
    parser.add_argument("--measure")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.measure:
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
    PROGRAMS[arguments.name]()
    if arguments.measure:
        stats = torch.cuda.memory_stats()
        total = torch.cuda.mem_get_info()[1]
        figures = {
            "allocated_bytes": stats["allocated_bytes.all.peak"],
            "reserved_bytes": stats["reserved_bytes.all.peak"],
            "requested_bytes": stats["requested_bytes.all.peak"],
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "total_bytes": total,
        }
        with open(arguments.measure, "w") as file:
            json.dump(figures, file)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
