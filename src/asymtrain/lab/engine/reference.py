"""One run, in the simplest correct loop. Every faster path is tested against it.

    for epoch in range(epochs):
        for indices in shuffled batches:
            loss = softmax(model(x), y) + alpha * branches.loss(y)
            loss.backward(); optimizer.step()          # every 16th step: the cosine of the two gradients
        accuracy on the validation images, and on the test images if the spec asks

It is the loop a user would write: the backbone as a module, `attach` for the branches, torch's own AdamW. Measurements
of the two gradients follow their definitions: parameter by parameter, in float64, without closed forms.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from asymtrain import streams
from asymtrain.branches import MAP_HEADS, Branches, Linear, Parallel, attach
from asymtrain.gradients import cosine
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import erase, mixing_weights
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.devices import device_name, products_of
from asymtrain.lab.engine import schedule, setup
from asymtrain.lab.engine.losses import MAIN
from asymtrain.lab.engine.modules import ModuleNetwork, read_logits
from asymtrain.lab.engine.optimizer import decays
from asymtrain.lab.engine.parameters import FlatParameters, layer_name
from asymtrain.lab.engine.signals import needs_both_gradients
from asymtrain.lab.engine.tally import Totals, epoch_record
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import calibration_error
from asymtrain.models import KeyedDropout
from asymtrain.objectives import find_objective

EVALUATION_BATCH = 1000
Pairs = Mapping[str, tuple[Tensor, Tensor]]  # main and auxiliary gradient of each shared parameter


class Measured(NamedTuple):
    """One measured step."""

    cosine: float | None
    main_norm: float
    auxiliary_norm: float


def train_reference(
    spec: RunSpec,
    dataset: Dataset,
    *,
    device: torch.device | str = "cpu",
    on_step: Callable[[int, nn.Module], None] | None = None,
    perturb: float = 0.0,
) -> Run:
    """Train one spec from start to end.

    `on_step(step, backbone)` is called after each update. `perturb` changes the initial weights by that relative
    amount: tests use it to calibrate how far two correct paths may diverge.
    """
    where = torch.device(device)
    with products_of(spec.precision):
        loop = _Loop(spec, dataset, where, perturb)
        history: list[Epoch] = []
        for epoch in range(spec.epochs):
            record = loop.run_epoch(epoch, on_step)
            if record is None:
                return Run(spec, tuple(history), "diverged", device_name(where))
            history.append(record)
    device_text, calibration = device_name(where), loop.calibration
    return Run(spec, tuple(history), "finished", device_text, answers=loop.answers, calibration_error=calibration)


class _Loop:
    def __init__(self, spec: RunSpec, dataset: Dataset, device: torch.device, perturb: float) -> None:
        self.spec, self.device = spec, device
        data = setup.run_data(spec, dataset)
        self.images = torch.from_numpy(dataset.train.inputs).to(device)
        self.labels = torch.from_numpy(data.labels).to(device)
        self.clean_labels = torch.from_numpy(dataset.train.labels).to(device)
        self.train = torch.from_numpy(data.train).to(device)
        self.validation = torch.from_numpy(data.validation).to(device)
        self.test_images = torch.from_numpy(dataset.test.inputs).to(device)
        self.test_labels = torch.from_numpy(dataset.test.labels).to(device)
        self.mean, self.std = data.mean.to(device), data.std.to(device)
        self.keys = {purpose: setup.stream_keys([spec], purpose, device) for purpose in setup.STREAMS}
        self.mixup, self.cutmix = (setup.mixing_tables([spec], field, device) for field in ("mixup", "cutmix"))
        self.network = setup.build_network(spec, dataset, device)
        self.model = self.network.module if isinstance(self.network, ModuleNetwork) else self.network.to(device)
        if perturb:
            _perturb(self.model, perturb)
        # Some buffers are infinite on purpose, such as an attention mask.
        self.finite_buffers = {name for name, value in self.model.named_buffers() if value.isfinite().all()}
        self.branches: Branches | None = None
        self.branch_labels: Tensor | None = None
        self.answers: bytes | None = None
        self.calibration: float | None = None
        sample = self.normalised(self.images[:2])
        if spec.redundancy:
            prior = setup.prior_bias(spec, data, dataset.classes) if spec.bias == "prior" else None
            self.branches = attach_branches(spec, self.model, self.network, sample, prior)
        if spec.branch_labels == "random":
            self.branch_labels = setup.random_labels(spec.seed, len(self.images), dataset.classes).to(device)
        self.shared = setup.reached_by_branches(self.network, sample)
        self.reached = set(setup.reached_by_branches(self.network, sample, spec.layers))
        if isinstance(self.network, ModuleNetwork):
            self.network.close()
        self.parameters = FlatParameters.of(dict(self.network.named_parameters()))
        self.optimizer = _optimizer(spec, self.model, self.branches)
        self.scale = 1.0 if spec.balance == "none" else 0.0  # the factor of alpha that balances gradient norms
        self.averaged = _averaged(self.model, spec.averaging) if spec.averaging else None

    def run_epoch(self, epoch: int, on_step: Callable[[int, nn.Module], None] | None) -> Epoch | None:
        spec, start = self.spec, time.perf_counter()
        passes = range(epoch * spec.passes, (epoch + 1) * spec.passes)
        chosen = [streams.permutations(self.keys["shuffle"], number, len(self.train))[0] for number in passes]
        order = self.train[torch.cat(chosen)]
        steps, count = schedule.steps_of(spec, len(self.train))
        batches = order[:count].split(spec.batch)
        main_sum = auxiliary_sum = correct = torch.zeros((), device=self.device, dtype=torch.float64)
        measured: list[Measured] = []
        rates = schedule.learning_rates(spec, epoch, len(batches)).tolist()
        for i, indices in enumerate(batches):
            step = epoch * len(batches) + i
            measure = schedule.measures_at(spec.cosine_every, step, steps) and bool(self.shared)
            for group in self.optimizer.param_groups:
                # AdamW raises an error if a rate exceeds float32
                group["lr"] = rates[i] if rates[i] <= torch.finfo(torch.float32).max else math.inf
            right, main, auxiliary = self.losses(step, indices)
            ratio = self.ratio(main, auxiliary) if schedule.balances_at(spec, step) else self.scale
            at_step = self.update(step, main, auxiliary, self.scale * schedule.alpha_at(spec, epoch), measure)
            self.scale = ratio
            main_sum = main_sum + main.detach() * len(indices)
            auxiliary_sum = auxiliary_sum + auxiliary.detach() * len(indices)
            correct = correct + right
            if at_step is not None:
                measured.append(at_step)
            if on_step is not None:
                on_step(step, self.model)
        sums = (main_sum.item() / count, auxiliary_sum.item() / count, correct.item() / count)
        validation = test = None
        if len(self.validation):
            *_, validation = self.answer(self.images, self.clean_labels, self.validation)
        if schedule.tests_at(spec, epoch):
            everything = torch.arange(len(self.test_labels), device=self.device)
            right, sure, test = self.answer(self.test_images, self.test_labels, everything)
            self.answers = np.packbits(right.cpu().numpy()).tobytes()  # the last epoch's answers stay
            self.calibration = calibration_error(sure.cpu().numpy(), right.cpu().numpy())
        totals, seconds = _totals(sums, measured), time.perf_counter() - start
        record = epoch_record(spec, epoch + 1, totals, (validation, test), seconds)
        return record if record.is_finite and self.is_finite() else None

    def is_finite(self) -> bool:
        """Whether weights, moments and buffers, from which the next step starts, are all finite."""
        weights = [value for group in self.optimizer.param_groups for value in group["params"]]
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        buffers = [value for name, value in self.model.named_buffers() if name in self.finite_buffers]
        return all(bool(value.isfinite().all()) for value in (*weights, *moments, *buffers))

    def losses(self, step: int, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The number of right answers, and the main and auxiliary loss of a batch with their graph."""
        spec, model = self.spec, self.model
        images, targets = self.images[indices], self.labels[indices]
        branch_targets = targets if self.branch_labels is None else self.branch_labels[indices]
        position = torch.arange(len(indices), device=self.device)
        for purpose, change in setup.image_changes(spec, self.device):
            images = change(images, streams.bits(self.keys[purpose], step, position))
        images = self.normalised(images)
        if spec.erasing:
            images = erase(images, streams.bits(self.keys["erase"], step, position), spec.erasing, spec.erased_area)
        share = torch.ones((), device=self.device)
        if spec.mixup or spec.cutmix:
            bits = streams.bits(self.keys["mix"], step)
            height, width = images.shape[-2:]
            (weights,) = mixing_weights(bits, self.mixup, self.cutmix, height, width, spec.mixing)
            images, share = weights * images + (1 - weights) * images.roll(1, 0), weights.mean()
        dropout = getattr(model, "dropout", None)
        if isinstance(dropout, KeyedDropout):
            width, rate = self.network.dropout_width, self.network.dropout_rate
            dropout.keep = setup.dropout_mask(self.keys["dropout"], step, len(indices), width, rate)[0]
        model.train()
        with autocast(spec, self.device):
            logits = self.logits(model, images, step)
            main = self.main_loss(logits, targets)
            auxiliary = main.new_zeros(())
            if self.branches is not None:
                auxiliary = self.branches.loss(branch_targets)
            right = MAIN.correct(logits, targets).sum()
            if spec.mixup or spec.cutmix:
                main = share * main + (1 - share) * self.main_loss(logits, targets.roll(1))
                right = share * right + (1 - share) * MAIN.correct(logits, targets.roll(1)).sum()
                if self.branches is not None:
                    auxiliary = share * auxiliary + (1 - share) * self.branches.loss(branch_targets.roll(1))
        return right, main, auxiliary

    def main_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.spec.label_smoothing:
            return F.cross_entropy(logits.float(), targets, label_smoothing=self.spec.label_smoothing)
        return MAIN.loss(logits.float(), targets)

    def logits(self, model: nn.Module, inputs: Tensor, step: int | None = None) -> Tensor:
        """Logits (B, C); in training (at `step`) a module draws from the run's own streams."""
        if not isinstance(self.network, ModuleNetwork):
            return model(inputs)
        with nullcontext() if step is None else self.network.drawing(self.keys["draws"][0], step):
            output = model(inputs)
        return read_logits(output)

    def ratio(self, main: Tensor, auxiliary: Tensor) -> float:
        """The factor that gives the auxiliary gradient the norm of the main one, over parameters that both reach.

        If the factor is undefined or not finite, the previous one stays.
        """
        both = [value for name, value in self.network.named_parameters() if name in self.reached]
        norms = [_norm(torch.autograd.grad(loss, both, retain_graph=True)) for loss in (main, auxiliary)]
        factor = norms[0] / norms[1] if norms[1] else math.inf
        return factor if math.isfinite(factor) else self.scale

    def update(self, step: int, main: Tensor, auxiliary: Tensor, alpha: float, measure: bool) -> Measured | None:
        """One step of the optimiser; returns the measured gradients if `measure`."""
        signal = self.spec.signal if self.branches is not None else "gradient"
        whole = self.branches is not None and needs_both_gradients(self.spec)
        apart = measure or whole
        parameters = {name: value for name, value in self.network.named_parameters() if name in self.shared}
        others: Sequence[Tensor] = [torch.zeros_like(value) for value in parameters.values()] if apart else []
        if apart and self.branches is not None:
            others = torch.autograd.grad(auxiliary, list(parameters.values()), retain_graph=True)
        self.optimizer.zero_grad()
        if signal == "detached":
            assert self.branches is not None
            own = [value for value in self.branches.parameters() if value.requires_grad]
            learnt = torch.autograd.grad(alpha * auxiliary, own, retain_graph=True) if own else ()
            for value, gradient in zip(own, learnt, strict=True):
                value.grad = gradient
            main.backward()
        else:
            (main + alpha * auxiliary).backward()
        if not apart:
            self.step()
            return None
        # The main gradient is the total minus the auxiliary part: the update does not change.
        applied = 0.0 if signal == "detached" else alpha
        pairs = {}
        for (name, value), other in zip(parameters.items(), others, strict=True):
            assert value.grad is not None
            pairs[name] = (value.grad - applied * other, other)
        if whole:
            key = self.keys["noise"]
            auxiliary_signal = (
                _gated_signal(pairs) if signal == "gated" else _noise_signal(pairs, self.parameters, key, step)
            )
            for name, value in parameters.items():
                value.grad = pairs[name][0] + alpha * auxiliary_signal[name]
        self.step()
        if not measure:
            return None
        both = {n: (main if n in self.reached else torch.zeros_like(main), other) for n, (main, other) in pairs.items()}
        return _measure(both)

    def step(self) -> None:
        """The optimiser's step, with gradients clipped if the spec says so; then the update of the averaged weights."""
        if self.spec.clip:
            trained = [value for group in self.optimizer.param_groups for value in group["params"]]
            nn.utils.clip_grad_norm_(trained, self.spec.clip)
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    @torch.no_grad()
    def answer(self, images: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, float]:
        """Which of images[indices] are classified right, (n,), and the confidence of each answer, without dropout.

        Also the accuracy, NaN if a logit is not finite.
        """
        model = self.model if self.averaged is None else self.averaged
        model.eval()
        right, sure, finite = [], [], True
        for chunk in indices.split(EVALUATION_BATCH):
            with autocast(self.spec, self.device):
                logits = self.logits(model, self.normalised(images[chunk]))
            right.append(MAIN.correct(logits, labels[chunk]))
            sure.append(logits.float().softmax(1).amax(1))
            finite = finite and bool(logits.isfinite().all())
        joined = torch.cat(right)
        return joined, torch.cat(sure), joined.double().mean().item() if finite else math.nan

    def normalised(self, images: Tensor) -> Tensor:
        return normalise(images, self.mean, self.std)


def autocast(spec: RunSpec, device: torch.device) -> AbstractContextManager[object]:
    """An autocast context for bfloat16 if the spec asks for it; weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if spec.precision == "bf16" else nullcontext()


def attach_branches(
    spec: RunSpec, model: nn.Module, network: setup.Network, sample: Tensor, bias: Tensor | None
) -> Branches:
    shares = setup.layer_weights([spec], len(network.points))
    branches = attach(
        model,
        at=list(network.points),
        preset="paper",  # its strength has the scale of a spec's alpha
        weights=1.0 if shares is None else dict(zip(network.points, shares[0].tolist(), strict=True)),
        sample=sample,
        classes=network.classes,
        objective=find_objective(spec.objective, class_reduction=spec.class_reduction),
        head=Parallel(spec.redundancy, Linear(bias) if spec.head == "linear" else spec.head, spec.activation),
        pool="none" if spec.head in MAP_HEADS else network.pool,
        layout=network.layout,
        seed=spec.seed,
    )
    return branches.requires_grad_(spec.branch_weights == "trained")


def _optimizer(spec: RunSpec, model: nn.Module, branches: Branches | None) -> torch.optim.Optimizer:
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if branches is not None:
        parameters |= {f"branch.{name}": value for name, value in branches.named_parameters() if value.requires_grad}
    decayed = [value for name, value in parameters.items() if decays(spec, name, value)]
    others = [value for name, value in parameters.items() if not decays(spec, name, value)]
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=spec.learning_rate)


def _averaged(model: nn.Module, decay: float) -> AveragedModel:
    """A moving average of the model's weights: the first is a copy, and the decay grows with the number of updates."""

    def average(averaged: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
        weight = min(decay, float(count) / (float(count) + 9))
        return weight * averaged + (1 - weight) * value

    return AveragedModel(model, avg_fn=average)


def _perturb(model: nn.Module, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((torch.randn(p.shape, generator=generator) * size).to(p.device) * p.abs().mean())


def _measure(pairs: Pairs) -> Measured:
    mains, auxiliaries = zip(*pairs.values(), strict=True)
    return Measured(cosine(mains, auxiliaries), _norm(mains), _norm(auxiliaries))


def _totals(losses: tuple[float, float, float], steps: Sequence[Measured]) -> Totals:
    """An epoch's totals from its mean losses and accuracy and its measured steps."""
    cosines = [step.cosine for step in steps if step.cosine is not None]
    return Totals(
        *losses,
        cosine=statistics.fmean(cosines) if cosines else None,
        cosine_min=min(cosines, default=None),
        cosine_max=max(cosines, default=None),
        cosine_std=statistics.stdev(cosines) if len(cosines) > 1 else None,
        conflict=sum(value < 0 for value in cosines) / len(cosines) if cosines else None,
        main_norm=statistics.fmean(step.main_norm for step in steps) if steps else None,
        auxiliary_norm=statistics.fmean(step.auxiliary_norm for step in steps) if steps else None,
    )


def _gated_signal(pairs: Pairs) -> dict[str, Tensor]:
    """The auxiliary gradient times its cosine with the main one, or times 0 if that is negative."""
    mains, auxiliaries = zip(*pairs.values(), strict=True)
    weight = max(0.0, cosine(mains, auxiliaries) or 0.0)
    return {name: weight * auxiliary for name, (_, auxiliary) in pairs.items()}


def _noise_signal(pairs: Pairs, layout: FlatParameters, key: Tensor, step: int) -> dict[str, Tensor]:
    """Gaussian noise with the norm of the auxiliary gradient in each layer."""
    position = torch.arange(layout.size, device=key.device)
    noise = {name: value[0] for name, value in layout.views(streams.normal(key, step, position)[None]).items()}
    replaced: dict[str, Tensor] = {}
    for names in _by_layers(pairs).values():
        scale = _norm([pairs[name][1] for name in names]) / _norm([noise[name] for name in names])
        replaced |= {name: noise[name] * scale for name in names}
    return replaced


def _by_layers(names: Iterable[str]) -> dict[str, list[str]]:
    """Parameter names by the layer that owns them."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_name(name), []).append(name)
    return layers


def _norm(gradient: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(part.double().square().sum().item() for part in gradient))
