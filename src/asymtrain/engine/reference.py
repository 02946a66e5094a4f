"""One run, the plainest loop that is right. Every faster path is tested against it.

    for epoch in range(epochs):
        for indices in shuffled batches:
            loss = softmax(model(x), y) + alpha * branches.loss(y)
            loss.backward(); optimizer.step()          # every 16th step: the cosine of the two gradients
        accuracy on the validation images, and on the test images where the spec asks

It is the loop a user would write: the backbone as a module, `attach` for the branches, torch's own AdamW.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from asymtrain import streams
from asymtrain.alignment import cosine
from asymtrain.branches import Branches, attach
from asymtrain.data import Dataset
from asymtrain.data.augment import flip_and_shift
from asymtrain.data.normalise import normalise
from asymtrain.engine.setup import (
    build_backbone,
    decays,
    dropout_mask,
    learning_rate,
    measures_at,
    run_data,
    stream_keys,
)
from asymtrain.models import Backbone, KeyedDropout
from asymtrain.objectives import softmax_loss
from asymtrain.runs import Epoch, Run, RunSpec

EVALUATION_BATCH = 1000


def train_reference(
    spec: RunSpec,
    dataset: Dataset,
    *,
    device: torch.device | str = "cpu",
    on_step: Callable[[int, Backbone], None] | None = None,
    perturb: float = 0.0,
) -> Run:
    """Train one spec from start to end.

    `on_step(step, backbone)` is called after each update. `perturb` moves the initial weights by that relative
    amount: tests calibrate with it how far two equally right paths may part.
    """
    place = torch.device(device)
    with matmul_precision(spec):
        loop = _Loop(spec, dataset, place, perturb)
        history: list[Epoch] = []
        for epoch in range(spec.epochs):
            record = loop.run_epoch(epoch, on_step)
            if record is None:
                return Run(spec, tuple(history), "diverged", _device_name(place))
            history.append(record)
    return Run(spec, tuple(history), "finished", _device_name(place))


class _Loop:
    def __init__(self, spec: RunSpec, dataset: Dataset, device: torch.device, perturb: float) -> None:
        self.spec, self.device = spec, device
        self.data = run_data(spec, dataset)
        self.images = torch.from_numpy(dataset.train.images).to(device)
        self.labels = torch.from_numpy(self.data.labels).to(device)
        self.clean_labels = torch.from_numpy(dataset.train.labels).to(device)
        self.train = torch.from_numpy(self.data.train).to(device)
        self.validation = torch.from_numpy(self.data.validation).to(device)
        self.test_images = torch.from_numpy(dataset.test.images).to(device)
        self.test_labels = torch.from_numpy(dataset.test.labels).to(device)
        self.mean, self.std = self.data.mean.to(device), self.data.std.to(device)
        self.keys = {name: stream_keys([spec], name, device) for name in ("shuffle", "augment", "dropout")}
        self.model = build_backbone(spec, dataset).to(device)
        if perturb:
            _perturb(self.model, perturb)
        self.branches = _attach(spec, self.model, self.normalised(self.images[:2])) if spec.redundancy else None
        self.optimizer = _optimizer(spec, self.model, self.branches)

    def run_epoch(self, epoch: int, on_step: Callable[[int, Backbone], None] | None) -> Epoch | None:
        spec, start = self.spec, time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(spec, epoch)
        order = self.train[streams.permutations(self.keys["shuffle"], epoch, len(self.train))[0]]
        batches = order.split(spec.batch)
        main_sum = auxiliary_sum = correct = torch.zeros((), device=self.device, dtype=torch.float64)
        cosines: list[float] = []
        for i, indices in enumerate(batches):
            step = epoch * len(batches) + i
            measure = bool(spec.redundancy) and measures_at(spec.cosine_every, step, len(batches))
            logits, main, auxiliary, similarity = self.step(step, indices, measure)
            main_sum = main_sum + main * len(indices)
            auxiliary_sum = auxiliary_sum + auxiliary * len(indices)
            correct = correct + (logits.argmax(1) == self.labels[indices]).sum()
            if similarity is not None:
                cosines.append(similarity)
            if on_step is not None:
                on_step(step, self.model)
        count = len(self.train)
        if not (math.isfinite(main_sum.item()) and all(p.isfinite().all() for p in self.model.parameters())):
            return None
        return Epoch(
            epoch=epoch + 1,
            main_loss=main_sum.item() / count,
            auxiliary_loss=auxiliary_sum.item() / count if spec.redundancy else None,
            train_accuracy=correct.item() / count,
            validation_accuracy=self.accuracy(self.images, self.clean_labels, self.validation),
            test_accuracy=self.test_accuracy(epoch),
            cosine=math.fsum(cosines) / len(cosines) if cosines else None,
            cosine_min=min(cosines, default=None),
            cosine_max=max(cosines, default=None),
            seconds=time.perf_counter() - start,
        )

    def step(self, step: int, indices: Tensor, measure: bool) -> tuple[Tensor, Tensor, Tensor, float | None]:
        spec, model = self.spec, self.model
        images, targets = self.images[indices], self.labels[indices]
        if spec.augmentation == "flip_shift":
            position = torch.arange(len(indices), device=self.device)
            images = flip_and_shift(images, streams.bits(self.keys["augment"], step, position))
        dropout = getattr(model, "dropout", None)
        if isinstance(dropout, KeyedDropout):
            width, rate = model.dropout_width, model.dropout_rate
            dropout.keep = dropout_mask(self.keys["dropout"], step, len(indices), width, rate)[0]
        model.train()
        with autocast(spec, self.device):
            logits = model(self.normalised(images))
            main = softmax_loss(logits.float(), targets)
            auxiliary = self.branches.loss(targets) if self.branches is not None else main.new_zeros(())
            total = main + spec.alpha * auxiliary
        shared = _auxiliary_gradients(auxiliary, model) if measure else []
        self.optimizer.zero_grad()
        total.backward()
        similarity = None
        if measure:
            # The main gradient is what the auxiliary part leaves of the total: the update stays as it was.
            seen = [(p.grad - spec.alpha * g, g) for p, g in shared if p.grad is not None]
            similarity = cosine([g for g, _ in seen], [g for _, g in seen])
        self.optimizer.step()
        return logits.detach(), main.detach(), auxiliary.detach(), similarity

    def test_accuracy(self, epoch: int) -> float | None:
        wanted = self.spec.test == "every" or (self.spec.test == "last" and epoch + 1 == self.spec.epochs)
        everything = torch.arange(len(self.test_labels), device=self.device)
        return self.accuracy(self.test_images, self.test_labels, everything) if wanted else None

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor, indices: Tensor) -> float | None:
        if not len(indices):
            return None
        self.model.eval()
        correct = 0
        for chunk in indices.split(EVALUATION_BATCH):
            with autocast(self.spec, self.device):
                predicted = self.model(self.normalised(images[chunk])).argmax(1)
            correct += int((predicted == labels[chunk]).sum())
        return correct / len(indices)

    def normalised(self, images: Tensor) -> Tensor:
        return normalise(images, self.mean, self.std)


def autocast(spec: RunSpec, device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 where the spec asks for it; weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if spec.precision == "bf16" else nullcontext()


@contextmanager
def matmul_precision(spec: RunSpec) -> Iterator[None]:
    """TF32 products on for `tf32`, off otherwise; the caller's setting comes back afterwards."""
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec.precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution


def _attach(spec: RunSpec, model: Backbone, sample: Tensor) -> Branches:
    return attach(
        model,
        at=list(model.points),
        sample=sample,
        classes=model.classes,
        redundancy=spec.redundancy,
        activation=spec.activation,
        combine=spec.combine,
        draw=spec.draw,
        over_classes=spec.over_classes,
        pool=model.pool,
        layout=model.layout,
        seed=spec.seed,
    )


def _optimizer(spec: RunSpec, model: nn.Module, branches: Branches | None) -> torch.optim.AdamW:
    named = dict(model.named_parameters())
    if branches is not None:
        named |= {f"branch.{name}": value for name, value in branches.named_parameters()}
    decayed = [value for name, value in named.items() if decays(spec, name, value)]
    others = [value for name, value in named.items() if not decays(spec, name, value)]
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=spec.learning_rate)


def _auxiliary_gradients(auxiliary: Tensor, model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(auxiliary, parameters, retain_graph=True, allow_unused=True)
    return [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]


def _perturb(model: nn.Module, size: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((torch.randn(p.shape, generator=drawn) * size).to(p.device) * p.abs().mean())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
