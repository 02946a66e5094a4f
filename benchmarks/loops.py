"""The loops that the engine is measured against, each of them written by hand for the specs that the engine trains.

- `Loop`: one run. Eager it is the loop that a user would write. `expert` makes it that of an expert on a GPU: forward
  and loss compiled, and the whole step (gathering the batch, flips and shifts, forward with branches, loss, backward,
  fused AdamW) in one CUDA graph.
- `Ensemble`: many runs by `torch.func.vmap` over the same networks, with the same optimiser. On a GPU it is compiled,
  and in one CUDA graph, where that works; `form` says what worked.

All of them have their data on the device and shuffled before, and compute in the precision of their spec: bf16 is
autocast over float32 weights.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from asymtrain import WithBranches, attach, streams
from asymtrain.branches import Parallel
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import flip_and_shift
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine import setup
from asymtrain.lab.engine.modules import ModuleNetwork
from asymtrain.lab.runs import RunSpec

WARM_UP_STEPS = 3
EVALUATION_IMAGES = 2000  # in one forward pass


class Batches:
    """Batches of R runs, gathered on the device at a counter that is there too."""

    def __init__(self, specs: list[RunSpec], dataset: Dataset, device: torch.device) -> None:
        self.spec = specs[0]
        data = [setup.run_data(spec, dataset) for spec in specs]
        self.images = torch.from_numpy(dataset.train.inputs).to(device)
        self.labels = torch.from_numpy(dataset.train.labels).to(device)
        self.mean, self.std = (torch.stack([getattr(run, name) for run in data]).to(device) for name in ("mean", "std"))
        self.order = torch.stack([torch.from_numpy(run.train)[torch.randperm(len(run.train))] for run in data]).to(
            device
        )
        self.validation = torch.from_numpy(data[0].validation).to(device)
        self.keys = setup.stream_keys(specs, "augment", device)
        self.position = torch.arange(self.spec.batch, device=device)
        self.counter = torch.zeros((), dtype=torch.int64, device=device)

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (R, B, 3, H, W) and labels (R, B)."""
        at = (self.counter * self.spec.batch + self.position) % self.order.shape[1]
        chosen = self.order[:, at]
        images = self.images[chosen]
        if self.spec.augmentation == "flip_shift":
            images = flip_and_shift(images, streams.bits(self.keys[:, None], self.counter, self.position))
        self.counter += 1
        return normalise(images, self.mean, self.std), self.labels[chosen]


class Loop:
    """One run."""

    def __init__(self, spec: RunSpec, dataset: Dataset, device: torch.device, *, expert: bool = False) -> None:
        self.spec, self.device, self.expert = spec, device, expert
        self.batches = Batches([spec], dataset, device)
        self.model, self.net = build(spec, dataset, device)
        trained = [value for value in (self.net or self.model).parameters() if value.requires_grad]
        # `capturable` would keep a CPU's steps from being fused.
        self.optimizer = torch.optim.AdamW(trained, lr=spec.learning_rate, fused=True, capturable=expert)
        self.loss = torch.compile(self._loss, dynamic=False) if expert else self._loss
        self.batch = torch.compile(self.batches.next, dynamic=False) if expert else self.batches.next
        self.right = torch.compile(self._right, dynamic=False) if expert else self._right
        self.step = captured(self._step) if expert else self._step

    def _step(self) -> None:
        images, labels = self.batch()
        loss = self.loss(images[0], labels[0])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(self.spec, self.device):
            if self.net is None:
                return F.cross_entropy(self.model(images).float(), labels)
            if self.expert:  # logits that are handed over keep the compiled graph whole
                output, logits = self.net(images)
                auxiliary = self.net.branches.loss(labels, logits=logits)
            else:
                output = self.model(images)
                auxiliary = self.net.branches.loss(labels)
            return F.cross_entropy(output.float(), labels) + self.spec.alpha * auxiliary

    def _right(self, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(self.spec, self.device):
            inputs = normalise(images, self.batches.mean[0], self.batches.std[0])
            return (self.model(inputs).argmax(1) == labels).sum()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Accuracy on the validation images."""
        self.model.eval()
        data, right = self.batches, torch.zeros((), dtype=torch.int64, device=self.device)
        for chosen in data.validation.split(EVALUATION_IMAGES):
            right += self.right(data.images[chosen], data.labels[chosen])
        self.model.train()
        return right.item() / len(data.validation)


class Ensemble:
    """Many runs of one kind by `torch.func.vmap`."""

    def __init__(self, specs: list[RunSpec], dataset: Dataset, device: torch.device) -> None:
        self.spec, self.device = specs[0], device
        self.batches = Batches(specs, dataset, device)
        built = [build(spec, dataset, device) for spec in specs]
        nets = [net or model for model, net in built]
        self.net = nets[0]
        self.parameters, self.buffers = stack_module_state(nets)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=self.spec.learning_rate, fused=True, capturable=on_gpu
        )
        self.gradients = vmap(grad_and_value(self._loss), randomness="different")
        self.batch: Callable[[], tuple[Tensor, Tensor]] = self.batches.next
        self.step, self.form = self._fastest() if on_gpu else (self._step, "eager")

    def _fastest(self) -> tuple[Callable[[], None], str]:
        eager = self.gradients, self.batch
        try:
            # `fullgraph`: a part that is left out would make it eager, and nobody would know.
            self.gradients, self.batch = (torch.compile(part, dynamic=False, fullgraph=True) for part in eager)
            self._step()
            form = "compiled"
        except Exception as problem:  # whatever the compiler cannot do
            self.gradients, self.batch = eager
            form = f"eager, not compiled ({type(problem).__name__})"
        try:
            return captured(self._step), f"{form}, one CUDA graph"
        except RuntimeError as problem:
            return self._step, f"{form}, not captured ({type(problem).__name__})"

    def _step(self) -> None:
        images, labels = self.batch()
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
            # As the loss of a branch is defined; (B, 1, C) at each layer.
            auxiliary = sum(
                F.binary_cross_entropy_with_logits(values.float().reshape(wanted.shape), wanted)
                for values in logits.values()
            )
            return F.cross_entropy(output.float(), labels) + self.spec.alpha * auxiliary


def build(spec: RunSpec, dataset: Dataset, device: torch.device) -> tuple[nn.Module, WithBranches | None]:
    """The spec's model on the device, and with its branches where it has any."""
    network = setup.build_network(spec, dataset, device)
    if isinstance(network, ModuleNetwork):
        network.close()  # the engine's own hooks
        model = network.module
    else:
        model = network.to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    model.train()
    if not spec.redundancy:
        return model, None
    data = setup.run_data(spec, dataset)
    sample = normalise(torch.from_numpy(dataset.train.inputs[:2]), data.mean, data.std).to(device)
    branches = attach(
        model,
        at=list(network.points),
        sample=sample,
        classes=dataset.classes,
        preset="paper",
        head=Parallel(spec.redundancy),
        pool=network.pool,
        layout=network.layout,
        seed=spec.seed,
    )
    return model, WithBranches(model, branches.to(device))


def autocast(spec: RunSpec, device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bf16")


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A step of fixed shapes as one CUDA graph. It is run a few times before, which compiles what is compiled."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept_alive: Callable[[], None] = step) -> None:  # the graph reads the memory of what the step holds
        graph.replay()

    return replay
