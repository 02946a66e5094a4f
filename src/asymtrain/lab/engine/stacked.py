"""Many runs at once in one program.

    for epoch in range(epochs):
        shuffle on the device, one order for each run
        for step in range(steps):                     # on a GPU: replay of one captured graph
            batch of every run -> gradients of every run -> one AdamW over all of them
        accuracies of every run; losses, accuracies and cosines go to the host, once an epoch

A stack knows nothing of files or of other stacks: `state` and `load_state` are all a checkpoint needs.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from asymtrain.lab.data import Dataset
from asymtrain.lab.engine.aggregators import needs_both_gradients
from asymtrain.lab.engine.device_data import DeviceData
from asymtrain.lab.engine.gradients import StackGradients, Strategy, gradients
from asymtrain.lab.engine.layers import layers_of
from asymtrain.lab.engine.layout import layout_of
from asymtrain.lab.engine.losses import objective_of
from asymtrain.lab.engine.optimizer import Moments
from asymtrain.lab.engine.programs import Programs, programs_for
from asymtrain.lab.engine.setup import (
    alpha_at,
    build_backbone,
    decays,
    initial_parameters,
    learning_rate,
    measures_at,
    run_data,
)
from asymtrain.lab.engine.tally import Tally, epoch_record
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.models._kernels import load_kernels

EVALUATION_IMAGES = 4000  # in one forward pass: of all runs together, or of each by itself


class Stack:
    """R runs that train together. They may differ in seed, alpha, rates, noise and in being Plain."""

    def __init__(
        self, specs: list[RunSpec], dataset: Dataset, *, device: torch.device | str = "cpu", path: Strategy = "batched"
    ) -> None:
        self.specs, self.path, self.device = specs, path, torch.device(device)
        load_kernels(self.device)
        self.image_shape = dataset.train.images.shape[1:]
        self.backbone = build_backbone(specs[0], dataset)
        self.objective = objective_of(specs, self.backbone)
        # What the runs share on the auxiliary side; Plain runs have nothing to say there.
        self.lead = next((spec for spec in specs if spec.redundancy), specs[0])
        data = [run_data(spec, dataset) for spec in specs]
        bias = self.lead.branch_bias == "prior"
        starts = [
            initial_parameters(spec, dataset, mine, branches=self.objective.branches, bias=bias)
            for spec, mine in zip(specs, data, strict=True)
        ]
        # A Plain run has one unused branch at each point, whatever its neighbours have: it is spread over theirs.
        self.layout = layout_of(max(starts, key=lambda start: sum(value.numel() for value in start.values())))
        self.weights = self.layout.pack(starts).to(self.device)
        self.moments = Moments.zeros(self.weights)
        self.dtype = torch.bfloat16 if specs[0].precision == "bf16" else torch.float32
        self.data = DeviceData(specs, dataset, data, self.backbone, self.device, self.dtype)
        self.alpha = torch.zeros(len(specs), device=self.device)
        self.rate = torch.zeros(len(specs), 1, device=self.device)
        self.decay = self._decay(starts[0])
        self.shared = _shared_names(self)
        self.layers = layers_of(self.layout, self.shared, self.device)
        self.tally = Tally(len(specs), len(self.layers.names), self.device)
        self.programs: Programs = programs_for(self)
        self.epoch, self.step = 0, 0
        self.histories: list[list[Epoch]] = [[] for _ in specs]
        self.diverged = [False] * len(specs)
        self.answers: list[bytes | None] = [None] * len(specs)
        self.seconds = 0.0  # spent in the epoch at hand

    @property
    def finished(self) -> bool:
        """All epochs are trained, or no run is left that could go on."""
        return self.epoch >= self.specs[0].epochs or all(self.diverged)

    def advance(self, pause: Callable[[], bool] = lambda: False) -> None:
        """Train to the end of the epoch, or to the next step at which `pause` says so."""
        start = time.perf_counter()
        steps, every = self.data.steps, self.lead.cosine_every
        for rate, alpha, spec in zip(self.rate, self.alpha, self.specs, strict=True):
            rate.fill_(learning_rate(spec, self.epoch))
            alpha.fill_(alpha_at(spec, self.epoch))
        self.data.start_epoch(self.epoch, self.step)
        while self.step < steps:
            measure = measures_at(every, self.epoch * steps + self.step, steps)
            self.programs.train_step(measure)
            self.step += 1
            if self.step < steps and pause():
                self.seconds += time.perf_counter() - start
                return
        self._close_epoch(start)

    def train_step(self, measure: bool) -> None:
        """One step of every run: what `Programs` compiles and captures."""
        batch = self.programs.next_batch()
        weights = self.weights if self.dtype == torch.float32 else self.weights.to(self.dtype)
        whole = needs_both_gradients(self.lead)
        found = gradients(
            self.programs.losses,
            self.layout,
            weights,
            batch,
            self.alpha,
            path=self.path,
            gather=self.programs.gather,
            shared=self.shared if self.objective.branches and (measure or whole) else None,
        )
        if measure:
            self._measure(found)
        gradient = found.total
        if found.auxiliary is not None and whole:
            gradient = self._signal(found.total, found.auxiliary)
        self.programs.update(self.weights, gradient, self.moments, self.rate, self.decay)
        self.tally.add_losses(found.main_loss, found.auxiliary_loss, found.correct, batch.weight.sum())

    @torch.no_grad()
    def right_answers(self, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Which of images[indices] each run classifies right: indices (R, n) -> (R, n)."""
        runs, count = indices.shape
        weights = self.weights.to(self.dtype)
        size = min(count, max(1, EVALUATION_IMAGES // runs) if self.path == "batched" else EVALUATION_IMAGES)
        right = []
        for chosen in indices.split(max(1, size), 1):
            # Filling up the last chunk keeps one shape, so that one compiled program serves all.
            filled = torch.nn.functional.pad(chosen, (0, size - chosen.shape[1]))
            logits = self.programs.logits(self.layout.views(weights), self.programs.chunk(images, filled))
            right.append(logits.argmax(2)[:, : chosen.shape[1]] == labels[chosen])
        return torch.cat(right, 1)

    def results(self) -> list[Run]:
        """The record of each run; call it when the stack is finished."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return [
            Run(spec, tuple(history), "diverged" if lost else "finished", name, self.path, None if lost else answers)
            for spec, history, lost, answers in zip(
                self.specs, self.histories, self.diverged, self.answers, strict=True
            )
        ]

    def state(self) -> dict[str, Tensor]:
        """Tensors that, with `epoch`, `step`, `histories` and `diverged`, make this stack go on where it is."""
        return {
            "weights": self.weights,
            "first": self.moments.first,
            "second": self.moments.second,
            "updates": self.moments.updates,
            **self.tally.state(),
        }

    def changing(self) -> dict[str, Tensor]:
        """All tensors that a step changes."""
        return {**self.state(), "step": self.data.step, "global_step": self.data.global_step}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state`, in place: captured graphs keep their addresses."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def _close_epoch(self, start: float) -> None:
        totals = self.tally.read(self.data.size)
        finite = self.weights.isfinite().all(1).tolist()  # the last step may have lost what its loss does not show
        validation = self._validation()
        test = self._test()
        self.seconds += time.perf_counter() - start
        for r, spec in enumerate(self.specs):
            self.diverged[r] = self.diverged[r] or not (finite[r] and math.isfinite(totals[r].main_loss))
            if spec.cosine_every != self.lead.cosine_every:  # a Plain run that was measured at its neighbours' steps
                totals[r] = totals[r]._replace(main_norm=None)
            if not self.diverged[r]:
                share = self.seconds / len(self.specs)  # a run's share of the stack's time
                self.histories[r].append(
                    epoch_record(spec, self.epoch + 1, totals[r], validation[r], test[r], share, self.layers.names)
                )
        self.tally.clear()
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0

    def _measure(self, found: StackGradients) -> None:
        auxiliary = torch.zeros_like(found.total) if found.auxiliary is None else found.auxiliary
        applied = torch.zeros_like(self.alpha) if self.objective.detached else self.alpha
        sums = self.programs.dialogue(found.total, auxiliary, applied[:, None], self.layers.members)
        self.tally.add_dialogue(sums)

    def _signal(self, total: Tensor, auxiliary: Tensor) -> Tensor:
        """The gradient of the update, where it is not that of the total loss."""
        alpha, (members, inside, _) = self.alpha[:, None], self.layers
        noise = (alpha, self.data.keys["noise"], self.data.global_step - 1, members, inside)  # the counter has moved on
        match self.lead.signal, self.lead.aggregator:
            case "gated", "sum":
                return self.programs.gated(total, auxiliary, alpha, members)
            case "noise", "sum":
                return self.programs.with_noise(total, auxiliary, *noise)
            # The part by itself: taken as what another part leaves of the total, a closed gate would be rounding noise.
            case "gated", _:
                before = alpha * auxiliary
                part = self.programs.gate(total, auxiliary, alpha, members) * before
            case "noise", _:
                before = alpha * auxiliary
                part = self.programs.with_noise(before, auxiliary, *noise)
            case "gradient", _:
                before = part = alpha * auxiliary
            case signal, _:
                raise AssertionError(f"no case for the signal {signal!r}")
        return self.programs.aggregated(total - before + part, part, members)

    def _validation(self) -> list[float | None]:
        if not self.data.validation.shape[1]:
            return [None] * len(self.specs)
        right = self.right_answers(self.data.images, self.data.clean_labels, self.data.validation)
        return list(right.double().mean(1).tolist())

    def _test(self) -> list[float | None]:
        last = self.epoch + 1 == self.specs[0].epochs
        if not (self.specs[0].test == "every" or (self.specs[0].test == "last" and last)):
            return [None] * len(self.specs)
        everything = torch.arange(len(self.data.test_labels), device=self.device).expand(len(self.specs), -1)
        right = self.right_answers(self.data.test_images, self.data.test_labels, everything)
        if last:
            self.answers = [np.packbits(row).tobytes() for row in right.cpu().numpy()]
        return list(right.double().mean(1).tolist())

    def _decay(self, start: dict[str, Tensor]) -> Tensor:
        decayed = {name for name, value in start.items() if decays(self.lead, name, value)}
        strength = torch.tensor([[spec.weight_decay] for spec in self.specs], device=self.device)
        return strength if len(decayed) == len(start) else strength * self._mask(decayed)

    def _mask(self, names: set[str]) -> Tensor:
        mask = torch.zeros(1, self.layout.size, device=self.device)
        for name, view in self.layout.views(mask).items():
            view.fill_(float(name in names))
        return mask


def _shared_names(stack: Stack) -> list[str]:
    """Backbone parameters that the auxiliary loss reaches, found on the graph of one tiny batch on the host."""
    weights = stack.weights[:1].cpu()
    leaves = {name: view.detach().requires_grad_() for name, view in stack.layout.views(weights).items()}
    _, features = stack.backbone.stacked(leaves, torch.zeros(1, 2, *stack.image_shape))
    reached = torch.autograd.grad([f.sum() for f in features], list(leaves.values()), allow_unused=True)
    return [name for name, g in zip(leaves, reached, strict=True) if g is not None]
