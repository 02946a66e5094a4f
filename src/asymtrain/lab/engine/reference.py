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

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import streams
from asymtrain.branches import Branches, attach
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import flip_and_shift
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.aggregators import needs_both_gradients
from asymtrain.lab.engine.layers import layer_name
from asymtrain.lab.engine.layout import layout_of
from asymtrain.lab.engine.reference_aggregators import aggregate
from asymtrain.lab.engine.reference_dialogue import Measured, gated_signal, noise_signal, totals
from asymtrain.lab.engine.reference_dialogue import measure as measure_pairs
from asymtrain.lab.engine.setup import (
    alpha_at,
    build_backbone,
    decays,
    dropout_mask,
    learning_rate,
    measures_at,
    prior_bias,
    random_labels,
    run_data,
    stream_keys,
)
from asymtrain.lab.engine.tally import epoch_record
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.models import Backbone, KeyedDropout
from asymtrain.objectives import softmax_loss

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
    return Run(spec, tuple(history), "finished", _device_name(place), answers=loop.answers)


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
        self.keys = {name: stream_keys([spec], name, device) for name in ("shuffle", "augment", "dropout", "noise")}
        self.model = build_backbone(spec, dataset).to(device)
        if perturb:
            _perturb(self.model, perturb)
        self.branches: Branches | None = None
        self.branch_labels: Tensor | None = None
        self.answers: bytes | None = None
        sample = self.normalised(self.images[:2])
        if spec.redundancy:
            prior = prior_bias(spec, self.data, dataset.classes) if spec.branch_bias == "prior" else None
            self.branches = _attach(spec, self.model, sample, prior)
        if spec.branch_labels == "random":
            self.branch_labels = random_labels(spec.seed, len(self.images), dataset.classes).to(device)
        self.shared = reached_by_branches(self.model, sample)
        self.layout = layout_of(dict(self.model.named_parameters()))
        self.optimizer = _optimizer(spec, self.model, self.branches)

    def run_epoch(self, epoch: int, on_step: Callable[[int, Backbone], None] | None) -> Epoch | None:
        spec, start = self.spec, time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(spec, epoch)
        order = self.train[streams.permutations(self.keys["shuffle"], epoch, len(self.train))[0]]
        batches = order.split(spec.batch)
        main_sum = auxiliary_sum = correct = torch.zeros((), device=self.device, dtype=torch.float64)
        measured: list[Measured] = []
        for i, indices in enumerate(batches):
            step = epoch * len(batches) + i
            measure = measures_at(spec.cosine_every, step, len(batches))
            logits, main, auxiliary = self.losses(step, indices)
            seen = self.update(step, main, auxiliary, alpha_at(spec, epoch), measure)
            main_sum = main_sum + main.detach() * len(indices)
            auxiliary_sum = auxiliary_sum + auxiliary.detach() * len(indices)
            correct = correct + (logits.argmax(1) == self.labels[indices]).sum()
            if seen is not None:
                measured.append(seen)
            if on_step is not None:
                on_step(step, self.model)
        if not (math.isfinite(main_sum.item()) and all(p.isfinite().all() for p in self.model.parameters())):
            return None
        count, names = len(self.train), list(dict.fromkeys(map(layer_name, self.shared)))
        sums = (main_sum.item() / count, auxiliary_sum.item() / count, correct.item() / count)
        validation = self.right_answers(self.images, self.clean_labels, self.validation)
        test = self.test_answers(epoch)
        return epoch_record(
            spec,
            epoch + 1,
            totals(sums, measured, names),
            validation.double().mean().item() if len(validation) else None,
            None if test is None else test.double().mean().item(),
            time.perf_counter() - start,
            names,
        )

    def losses(self, step: int, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, main and auxiliary loss of a batch, with their graph."""
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
            if spec.label_smoothing:
                main = F.cross_entropy(logits.float(), targets, label_smoothing=spec.label_smoothing)
            auxiliary = main.new_zeros(())
            if self.branches is not None:
                auxiliary = self.branches.loss(targets if self.branch_labels is None else self.branch_labels[indices])
        return logits, main, auxiliary

    def update(self, step: int, main: Tensor, auxiliary: Tensor, alpha: float, measure: bool) -> Measured | None:
        """One step of the optimiser, and what the two gradients were where that is asked for."""
        signal = self.spec.signal if self.branches is not None else "gradient"
        whole = self.branches is not None and needs_both_gradients(self.spec)
        apart = measure or whole
        shared = self.auxiliary_gradients(auxiliary) if apart and self.branches is not None else {}
        self.optimizer.zero_grad()
        if signal == "detached":
            self.teach_branches(alpha * auxiliary)
            main.backward()
        else:
            (main + alpha * auxiliary).backward()
        if not apart:
            self.optimizer.step()
            return None
        # The main gradient is what the auxiliary part leaves of the total: the update stays as it was.
        applied = 0.0 if signal == "detached" else alpha
        named = {name: value for name, value in self.model.named_parameters() if name in self.shared}
        pairs = {}
        for name, value in named.items():
            assert value.grad is not None
            other = shared.get(name, torch.zeros_like(value))
            pairs[name] = (value.grad - applied * other, other)
        if whole:
            sent = {name: other for name, (_, other) in pairs.items()}
            if signal in ("noise", "gated"):
                key = self.keys["noise"]
                sent = gated_signal(pairs) if signal == "gated" else noise_signal(pairs, self.layout, key, step)
            both = {name: (pairs[name][0], alpha * sent[name]) for name in named}
            for name, gradient in aggregate(both, self.spec.aggregator).items():
                named[name].grad = gradient
        self.optimizer.step()
        return measure_pairs(pairs) if measure else None

    def teach_branches(self, loss: Tensor) -> None:
        """Gradients for the branches alone."""
        assert self.branches is not None
        own = [value for value in self.branches.parameters() if value.requires_grad]
        for value, gradient in zip(own, torch.autograd.grad(loss, own, retain_graph=True) if own else [], strict=True):
            value.grad = gradient

    def auxiliary_gradients(self, auxiliary: Tensor) -> dict[str, Tensor]:
        named = {name: value for name, value in self.model.named_parameters() if name in self.shared}
        found = torch.autograd.grad(auxiliary, list(named.values()), retain_graph=True)
        return dict(zip(named, found, strict=True))

    def test_answers(self, epoch: int) -> Tensor | None:
        last = epoch + 1 == self.spec.epochs
        if not (self.spec.test == "every" or (self.spec.test == "last" and last)):
            return None
        everything = torch.arange(len(self.test_labels), device=self.device)
        right = self.right_answers(self.test_images, self.test_labels, everything)
        if last:
            self.answers = np.packbits(right.cpu().numpy()).tobytes()
        return right

    @torch.no_grad()
    def right_answers(self, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Which of images[indices] are classified right, without dropout: (n,)."""
        self.model.eval()
        right = [torch.zeros(0, dtype=torch.bool, device=self.device)]
        for chunk in indices.split(EVALUATION_BATCH) if len(indices) else ():
            with autocast(self.spec, self.device):
                predicted = self.model(self.normalised(images[chunk])).argmax(1)
            right.append(predicted == labels[chunk])
        return torch.cat(right)

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


def reached_by_branches(model: Backbone, sample: Tensor) -> list[str]:
    """Names of the parameters that the auxiliary loss has a gradient for."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad([f.sum() for f in model.features(sample)[1]], list(named.values()), allow_unused=True)
    return [name for name, gradient in zip(named, found, strict=True) if gradient is not None]


def _attach(spec: RunSpec, model: Backbone, sample: Tensor, bias: Tensor | None) -> Branches:
    branches = attach(
        model,
        at=list(model.points),
        sample=sample,
        classes=model.classes,
        redundancy=spec.redundancy,
        activation=spec.activation,
        branch_reduction=spec.combine,
        initialization=spec.draw,
        class_reduction=spec.over_classes,
        pool=model.pool,
        layout=model.layout,
        seed=spec.seed,
        bias=bias,
        loss_fn=softmax_loss if spec.objective == "softmax" else None,
    )
    return branches.requires_grad_(spec.branch_weights == "trained")


def _optimizer(spec: RunSpec, model: nn.Module, branches: Branches | None) -> torch.optim.AdamW:
    named = dict(model.named_parameters())
    if branches is not None:
        named |= {f"branch.{name}": value for name, value in branches.named_parameters() if value.requires_grad}
    decayed = [value for name, value in named.items() if decays(spec, name, value)]
    others = [value for name, value in named.items() if not decays(spec, name, value)]
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=spec.learning_rate)


def _perturb(model: nn.Module, size: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((torch.randn(p.shape, generator=drawn) * size).to(p.device) * p.abs().mean())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
