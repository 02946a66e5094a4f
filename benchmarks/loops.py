"""The loops that the engine is measured against, written by hand for the same specs.

- `Loop`: one run, or several one after another. In eager mode it is the loop that a user would write. `expert` makes it
  an expert's loop on a GPU: forward and loss compiled, and the whole step (gathering the batch, flips and shifts,
  forward with branches, loss, backward, fused AdamW) in one CUDA graph; a step that measures the cosine is a second
  graph. Runs that differ in seed, alpha or branch labels reuse one loop, which compiles once for all.
- `Ensemble`: many runs by `torch.func.vmap` over the same networks, with the same optimiser. On a GPU it is compiled,
  and in one CUDA graph, if that works; `form` says what worked.

All keep their data on the device, and compute in the precision of their spec: bf16 is autocast over float32 weights.
`Loop` draws batches, augmentation and dropout from the engine's streams, so its rows equal the engine's except for
rounding. It supports a constant learning rate and linear branches only.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from asymtrain import WithBranches, streams
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import flip_and_shift
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.devices import device_name
from asymtrain.lab.engine import schedule, setup
from asymtrain.lab.engine.modules import ModuleNetwork
from asymtrain.lab.engine.reference import attach_branches
from asymtrain.lab.engine.tally import Tally, Totals, epoch_record
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import calibration_error
from asymtrain.models import KeyedDropout

WARM_UP_STEPS = 3
EVALUATION_IMAGES = 2000  # in one forward pass


class Batches:
    """Batches of R runs, gathered on the device at a counter on the device."""

    def __init__(self, specs: list[RunSpec], dataset: Dataset, device: torch.device) -> None:
        self.spec = specs[0]
        data = [setup.run_data(spec, dataset) for spec in specs]
        self.images = torch.from_numpy(dataset.train.inputs).to(device)
        self.labels = torch.from_numpy(dataset.train.labels).to(device)
        self.branch_labels = self.labels.clone()
        self.mean, self.std = (torch.stack([getattr(run, name) for run in data]).to(device) for name in ("mean", "std"))
        self.train = torch.stack([torch.from_numpy(run.train) for run in data]).to(device)
        self.validation = torch.from_numpy(data[0].validation).to(device)
        self.keys = {name: setup.stream_keys(specs, name, device) for name in ("shuffle", "augment", "dropout")}
        self.steps, self.images_of_epoch = schedule.steps_of(self.spec, self.train.shape[1])
        self.position = torch.arange(self.spec.batch, device=device)
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.order = self.train.clone()
        self.shuffle(0)

    def shuffle(self, epoch: int) -> None:
        """Draw the order of an epoch (from 0)."""
        self.order.copy_(self.train.gather(1, streams.permutations(self.keys["shuffle"], epoch, self.train.shape[1])))

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """The next images (R, B, 3, H, W), and labels (R, B) of the model and of its branches."""
        at = (self.counter % self.steps * self.spec.batch + self.position) % self.order.shape[1]
        chosen = self.order[:, at]
        images = self.images[chosen]
        if self.spec.augmentation == "flip_shift":
            images = flip_and_shift(images, streams.bits(self.keys["augment"][:, None], self.counter, self.position))
        self.counter += 1
        return normalise(images, self.mean, self.std), self.labels[chosen], self.branch_labels[chosen]


class Loop:
    """Trains runs one after another; they differ in what `begin` sets."""

    def __init__(self, spec: RunSpec, dataset: Dataset, device: torch.device, *, expert: bool = False) -> None:
        self.spec, self.dataset, self.device, self.expert = spec, dataset, device, expert
        self.batches = Batches([spec], dataset, device)
        self.network, self.model, self.net, self.shared = build(spec, dataset, device)
        self.test = tuple(torch.from_numpy(part).to(device) for part in (dataset.test.inputs, dataset.test.labels))
        trained = [value for value in (self.net or self.model).parameters() if value.requires_grad]
        # On a CPU, `capturable` would prevent fused steps.
        self.optimizer = torch.optim.AdamW(trained, lr=spec.learning_rate, fused=True, capturable=expert)
        self.alpha, self.one, self.zero = (torch.tensor(value, device=device) for value in (spec.alpha, 1.0, 0.0))
        self.tally = Tally(1, device)
        self.losses, self.batch, self.classify, self.count, self.sums = (
            torch.compile(part, dynamic=False) if expert else part
            for part in (self._losses, self._batch, self._classify, self._count, _alignment_sums)
        )
        self.step = captured(self._step) if expert else self._step

    @cached_property
    def measured_step(self) -> Callable[[], None]:
        """A step that measures the cosine."""
        step = partial(self._step, measure=True)
        return captured(step) if self.expert else step

    def prepare(self) -> None:
        """Compile and capture whatever a run needs; this trains a few steps, so `begin` comes after it."""
        if self.expert:
            if self.shared:  # otherwise there is no cosine, and `epoch` asks for none
                _ = self.measured_step
            self.answers(*self.test)

    @torch.no_grad()
    def begin(self, spec: RunSpec) -> None:
        """Bring the loop to the start of this run, in place: captured graphs read and write the same memory."""
        self.spec = spec
        data, batches = setup.run_data(spec, self.dataset), self.batches
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        if self.net is not None:
            of_branches = dict(self.net.branches.named_parameters())
            for kind, suffix in (("live", ""), ("bias", ".bias")):
                values = [value for name, value in of_branches.items() if name.endswith(f".{kind}")]
                own |= {f"branch.{k}{suffix}": value for k, value in enumerate(values)}
        start = setup.initial_state(spec, self.dataset, data, self.network, spec)
        for name, value in (start.parameters | start.buffers).items():
            own[name].copy_(value.view_as(own[name]))
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        random = spec.branch_labels == "random"
        labels = setup.random_labels(spec.seed, len(batches.labels), self.dataset.classes) if random else batches.labels
        batches.branch_labels.copy_(labels)
        for name, key in batches.keys.items():
            key.copy_(setup.stream_keys([spec], name, self.device))
        for name in ("mean", "std", "train", "validation"):
            value = torch.as_tensor(getattr(data, name))
            getattr(batches, name).copy_(value if name == "validation" else value[None])
        batches.counter.zero_()

    def train(self, spec: RunSpec, on_epoch: Callable[[], None] = lambda: None) -> Run:
        """Train one run from start to end."""
        self.begin(spec)
        about = {"device": device_name(self.device), "path": "loop"}
        history: list[Epoch] = []
        for epoch in range(spec.epochs):
            begun = time.perf_counter()
            totals, accuracies = self.epoch(epoch), [None, None]
            if len(self.batches.validation):
                chosen = self.batches.validation
                accuracies[0] = self.answers(self.batches.images, self.batches.labels, chosen)[0].mean()
            if schedule.tests_at(spec, epoch):
                right, sure = self.answers(*self.test)
                accuracies[1] = right.mean()
            record = epoch_record(spec, epoch + 1, totals, tuple(accuracies), time.perf_counter() - begun)
            if not record.is_finite:
                return Run(spec, tuple(history), "diverged", **about)
            history.append(record)
            on_epoch()
        if spec.test != "never":
            about |= {"answers": np.packbits(right).tobytes(), "calibration_error": calibration_error(sure, right)}
        return Run(spec, tuple(history), "finished", **about)

    def epoch(self, number: int) -> Totals:
        """Train the steps of an epoch (from 0). Reading their sums waits for the device."""
        self.batches.shuffle(number)
        self.alpha.fill_(schedule.alpha_at(self.spec, number))
        self.tally.clear()
        steps = self.batches.steps
        for step in range(number * steps, (number + 1) * steps):
            measure = self.shared and schedule.measures_at(self.spec.cosine_every, step, steps)
            (self.measured_step if measure else self.step)()
        return self.tally.read(self.batches.images_of_epoch)[0]

    def _step(self, measure: bool = False) -> None:
        images, labels, branch_labels, keep = self.batch()
        if keep is not None:
            self.model.dropout.keep = keep
        main, auxiliary, right = self.losses(images, labels, branch_labels)
        both = [main] if self.net is None else [main, auxiliary]
        self.optimizer.zero_grad()
        others = None
        if measure and self.net is not None:
            others = torch.autograd.grad(both, self.shared, [self.zero, self.one], retain_graph=True)
        torch.autograd.backward(both, [self.one, self.alpha][: len(both)])
        if measure:
            totals = [value.grad for value in self.shared]
            self.tally.add_alignment(self.sums(totals, others or [torch.zeros_like(g) for g in totals], self.alpha))
        self.optimizer.step()
        self.count(main, auxiliary, right)

    def _batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        step, keep = self.batches.counter.clone(), None
        images, labels, branch_labels = self.batches.next()
        if isinstance(getattr(self.model, "dropout", None), KeyedDropout):
            width, rate = self.network.dropout_width, self.network.dropout_rate
            keep = setup.dropout_mask(self.batches.keys["dropout"], step, self.spec.batch, width, rate)[0]
        return images[0], labels[0], branch_labels[0], keep

    def _losses(self, images: Tensor, labels: Tensor, branch_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with autocast(self.spec, self.device):
            if self.net is None:
                output = self.model(images)
                auxiliary = self.zero
            elif self.expert:  # passing logits keeps the compiled graph whole
                output, logits = self.net(images)
                auxiliary = self.net.branches.loss(branch_labels, logits=logits)
            else:
                output = self.model(images)
                auxiliary = self.net.branches.loss(branch_labels)
            return F.cross_entropy(output.float(), labels), auxiliary, (output.argmax(1) == labels).sum()

    def _count(self, main: Tensor, auxiliary: Tensor, right: Tensor) -> None:
        losses = (value.detach()[None] for value in (main, auxiliary))
        self.tally.add_losses(*losses, right[None], self.one * self.spec.batch)

    def _classify(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(self.spec, self.device):
            logits = self.model(normalise(images, self.batches.mean[0], self.batches.std[0])).float()
        return logits.argmax(1) == labels, logits.softmax(1).amax(1)

    @torch.no_grad()
    def answers(
        self, images: Tensor, labels: Tensor, chosen: Tensor | None = None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """Which of these images are classified correctly, and how confident the model is."""
        self.model.eval()
        chosen = torch.arange(len(labels), device=self.device) if chosen is None else chosen
        parts = [self.classify(images[rows], labels[rows]) for rows in chosen.split(EVALUATION_IMAGES)]
        self.model.train()
        right, sure = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
        return right, sure


class Ensemble:
    """Many runs of one kind by `torch.func.vmap`."""

    def __init__(self, specs: list[RunSpec], dataset: Dataset, device: torch.device) -> None:
        self.spec, self.device = specs[0], device
        self.batches = Batches(specs, dataset, device)
        built = [build(spec, dataset, device) for spec in specs]
        nets = [run.net or run.model for run in built]
        self.net = nets[0]
        self.parameters, self.buffers = stack_module_state(nets)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=self.spec.learning_rate, fused=True, capturable=on_gpu
        )
        self.gradients = vmap(grad_and_value(self._loss), randomness="different")
        self.batch: Callable[[], tuple[Tensor, Tensor, Tensor]] = self.batches.next
        self.step, self.form = self._fastest() if on_gpu else (self._step, "eager")

    def _fastest(self) -> tuple[Callable[[], None], str]:
        eager = self.gradients, self.batch
        try:
            # `fullgraph`: otherwise a graph break would silently run a part in eager mode.
            self.gradients, self.batch = (torch.compile(part, dynamic=False, fullgraph=True) for part in eager)
            self._step()
            form = "compiled"
        except Exception as problem:  # the compiler may fail in any way
            self.gradients, self.batch = eager
            form = f"eager, not compiled ({type(problem).__name__})"
        try:
            return captured(self._step), f"{form}, one CUDA graph"
        except RuntimeError as problem:
            return self._step, f"{form}, not captured ({type(problem).__name__})"

    def _step(self) -> None:
        images, labels, _ = self.batch()
        gradients, _ = self.gradients(self.parameters, self.buffers, images, labels)
        for name, value in self.parameters.items():
            value.grad = gradients[name]
        self.optimizer.step()

    def _loss(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor, labels: Tensor
    ) -> Tensor:
        with autocast(self.spec, self.device):
            result = functional_call(self.net, (parameters, buffers), (images,))
            if not isinstance(self.net, WithBranches):
                return F.cross_entropy(result.float(), labels)
            output, logits = result
            wanted = (
                labels[:, None] == torch.arange(output.shape[1], device=labels.device)
            ).float()  # one_hot reads them
            # The definition of a branch's loss; (B, 1, C) at each layer.
            auxiliary = sum(
                F.binary_cross_entropy_with_logits(values.float().reshape(wanted.shape), wanted)
                for values in logits.values()
            )
            return F.cross_entropy(output.float(), labels) + self.spec.alpha * auxiliary


class Built(NamedTuple):
    """A spec's model on the device, with its branches if it has any."""

    network: setup.Network
    model: nn.Module
    net: WithBranches | None
    shared: list[nn.Parameter]  # reached by both losses: the cosine is measured on these


def build(spec: RunSpec, dataset: Dataset, device: torch.device) -> Built:
    network = setup.build_network(spec, dataset, device)
    module = isinstance(network, ModuleNetwork)
    model = network.module if module else network.to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    data = setup.run_data(spec, dataset)
    sample = normalise(torch.from_numpy(dataset.train.inputs[:2]), data.mean, data.std).to(device)
    names = setup.reached_by_branches(network, sample) if spec.redundancy or not module else []
    own = dict(network.named_parameters())
    if module:
        network.close()  # the engine's own hooks
    model.train()
    net = None
    if spec.redundancy:
        prior = setup.prior_bias(spec, data, dataset.classes) if spec.bias == "prior" else None
        net = WithBranches(model, attach_branches(spec, model, network, sample, prior).to(device))
    return Built(network, model, net, [own[name] for name in names])


def _alignment_sums(totals: list[Tensor], others: list[Tensor], alpha: Tensor) -> Tensor:
    """The arguments of `Tally.add_alignment`, (3, 1, 1); the main gradient is the total minus the auxiliary part."""
    pairs = [((total - alpha * other).double(), other.double()) for total, other in zip(totals, others, strict=True)]
    products = [torch.stack([(a * b).sum(), a.square().sum(), b.square().sum()]) for a, b in pairs]
    return torch.stack(products).sum(0)[:, None, None]


def autocast(spec: RunSpec, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bf16")


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A step of fixed shapes as one CUDA graph. It first runs a few times, to compile."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept_alive: Callable[[], None] = step) -> None:  # keeps `step` alive: the graph reads its memory
        graph.replay()

    return replay
