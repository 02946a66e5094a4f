"""Many runs at once in one program; the package's docstring draws one epoch.

A stack knows nothing of files or of other stacks: `state` and `load_state` are all a checkpoint needs.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asymtrain.errors import UsageWarning
from asymtrain.lab.checkpoints import Strategy
from asymtrain.lab.data import Dataset
from asymtrain.lab.devices import compiler_settings, device_name
from asymtrain.lab.engine import schedule, setup
from asymtrain.lab.engine.device_data import DeviceData
from asymtrain.lab.engine.losses import MAIN, confidence, gradients, kinds_of, stack_loss
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.optimizer import Moments, decays
from asymtrain.lab.engine.parameters import FlatParameters, is_branch, layers_of, parameter_count, stack_aligned
from asymtrain.lab.engine.programs import CapturedSteps, ModuleParts, Programs
from asymtrain.lab.engine.signals import needs_both_gradients, update_gradient
from asymtrain.lab.engine.tally import Accuracies, Tally, epoch_record
from asymtrain.lab.engine.tracing import Recorded, record
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.statistics.estimates import calibration_error
from asymtrain.models import Parameters, load_kernels

EVALUATION_IMAGES = 4000  # of 32 x 32 pixels in one forward pass: of all runs if batched, else of each run
_NUMBERS = 3 * 32 * 32  # values of such an image
_EVALUATED_BATCHES = 8  # without gradients these need no more memory than one batch with gradients


class Stack:
    """R runs that train together. They may differ in seed, alpha, rates, noise, the loss of their branches, and in
    being Plain: see `plan.py`.
    """

    def __init__(
        self,
        specs: list[RunSpec],
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        strategy: Strategy = "batched",
    ) -> None:
        self.specs, self.strategy, self.device = specs, strategy, torch.device(device)
        load_kernels(self.device)
        # It has the auxiliary settings that all Asymmetric runs share.
        self.lead = next((spec for spec in specs if spec.redundancy), specs[0])
        self.network = setup.build_network(specs[0], dataset, self.device, layers=self.lead)
        self.loss, kinds = stack_loss(specs, self.network), kinds_of(specs)
        self.kind = None  # of each run, if they differ
        if len(self.loss.kinds) > 1:
            self.kind = torch.tensor([self.loss.kinds.index(kind) for kind in kinds], device=self.device)
        data, starts = setup.starts_of(specs, dataset, self.network, self.lead)
        # A Plain run has one unused branch at each point, which is repeated to fit its neighbours' shapes.
        largest = max((start.parameters for start in starts), key=parameter_count)
        self.parameters = FlatParameters.of(largest)
        self.names = [tuple(start.parameters) for start in starts]  # the parameters that each run has
        self.weights = self.parameters.pack([start.parameters for start in starts]).to(self.device)
        self.buffers = {
            name: stack_aligned([start.buffers[name].to(self.device) for start in starts]) for name in starts[0].buffers
        }
        # Some are infinite on purpose, such as an attention mask.
        self.finite_buffers = [value for value in self.buffers.values() if value.isfinite().all()]
        self.moments = Moments.zeros(self.weights)
        # A module casts by autocast; the backbones' stacked forms compute in the type of their inputs.
        half = specs[0].precision == "bf16" and not isinstance(self.network, ModuleNetwork)
        self.dtype = torch.bfloat16 if half else torch.float32
        self.data = DeviceData(specs, dataset, data, self.network, self.device, self.dtype)
        self.alpha = torch.zeros(len(specs), device=self.device)
        self.rates = torch.zeros(len(specs), self.data.steps, device=self.device)  # of the current epoch
        self.decay = self._decay(largest)
        # If norms are balanced: the factor that gives the auxiliary gradient the main one's norm, 0 at first.
        self.scale = torch.zeros_like(self.alpha) if self.lead.balance == "norms" else None
        self.reaching = torch.tensor([float(not kind.detached) for kind in kinds], device=self.device)
        self.clip = self._vector("clip") if any(spec.clip for spec in specs) else None
        self.averaging = self._vector("averaging")
        # The averaged weights, which are evaluated; for a run without averaging they equal its weights.
        self.average = self.weights.clone() if any(spec.averaging for spec in specs) else None
        image_shape = dataset.train.inputs.shape[1:]
        tiny = torch.zeros(2, *image_shape)  # on the host, like the backbone module
        self.shared = setup.reached_by_branches(self.network, tiny)
        self.reached = self._reached_masks(tiny)
        self.shared_layers = layers_of(self.parameters, self.shared, self.device)
        self.tally = Tally(len(specs), self.device)
        self.whole = needs_both_gradients(self.lead)
        self.captured = CapturedSteps() if self.device.type == "cuda" else None
        self.image_shape = image_shape
        self.programs = self._programs()
        self.epoch, self.step = 0, 0
        self.checked = False  # whether a module's steps can be captured
        self.histories: list[list[Epoch]] = [[] for _ in specs]
        self.diverged = [False] * len(specs)
        self.answers: list[bytes | None] = [None] * len(specs)
        self.calibration: list[float | None] = [None] * len(specs)
        self.seconds = 0.0  # spent in the current epoch

    @property
    def finished(self) -> bool:
        """Whether all epochs are trained, or all runs have diverged."""
        return self.epoch >= self.specs[0].epochs or all(self.diverged)

    def advance(self, pause: Callable[[], bool] = lambda: False) -> None:
        """Train to the end of the epoch, or until `pause` returns True after a step."""
        start = time.perf_counter()
        self._open_epoch()
        while self.step < self.data.steps:
            self.run_step(self._measures_at(self.step))
            self.step += 1
            if self.step < self.data.steps and pause():
                self.seconds += time.perf_counter() - start
                return
        self._close_epoch(start)

    def prepare(self) -> None:
        """Compile and capture now what the current epoch will call, without training; on a CPU do nothing.

        Without this, each part is captured at its first call, in the same time.
        """
        if self.captured is None:
            return
        self._open_epoch()
        kinds = [(self._measures_at(s), self._balances_at(s), self.data.count_at(s)) for s in range(self.data.steps)]
        for kind in dict.fromkeys(kinds):
            self._capture(*kind)
        self._accuracies()

    def run_step(self, measure: bool) -> None:
        """One step of every run; on a GPU it is captured at the first call, then replayed."""
        kind = measure, self._balances_at(self.step), self.data.count_at(self.step)
        self._capture(*kind)
        if self.captured is None:
            self._train_step(*kind)
        else:
            self.captured.replay(kind)

    def _capture(self, measure: bool, balance: bool, count: int) -> None:
        """Capture a kind of step, if steps are captured."""
        if isinstance(self.network, ModuleNetwork) and self.captured is not None and not self.checked:
            self._check_capture(count)
        if self.captured is not None:
            kind = measure, balance, count
            self.captured.capture(kind, lambda: self._train_step(*kind), self.changing)

    def _check_capture(self, count: int) -> None:
        """Check that a module's step can be captured; if not, train without capture, which is slower."""
        captured, compiled, self.checked = self.captured, self.programs, True
        assert captured is not None
        self.captured = None
        self.programs = self._programs()
        if captured.allows(lambda: self._train_step(False, False, count), self.changing):
            self.captured, self.programs = captured, compiled
        else:
            warnings.warn(
                f"{self.specs[0].arch} reads values from the device in its forward, so its steps cannot be captured: "
                "it trains by a slower path",
                UsageWarning,
                stacklevel=2,
            )

    def _train_step(self, measure: bool, balance: bool, count: int) -> None:
        # A smaller last batch is one step of many: compiling for its size would cost more time than it saves.
        whole = count == self.data.batch
        batch = (self.programs.next_batch if whole else self.data.next_batch)(count)._replace(kind=self.kind)
        if isinstance(self.network, ModuleNetwork):
            # The counter is already at the next step.
            batch = batch._replace(training=Training(self.buffers, self.data.keys["draws"], self.data.global_step - 1))
        weights = self.weights if self.dtype == torch.float32 else self.weights.to(self.dtype)
        alpha = self.alpha if self.scale is None else self.alpha * self.scale
        step = gradients(
            self.programs.losses if whole else self.loss,
            self.parameters,
            weights,
            batch,
            alpha,
            strategy=self.strategy,
            gather=self.programs.gather,
            shared=self.shared if self.loss.branches and (measure or balance or self.whole) else None,
        )
        if measure or balance:
            auxiliary = torch.zeros_like(step.total) if step.auxiliary is None else step.auxiliary
            applied = (alpha * self.reaching)[:, None]
            compared = step.total if self.reached is None else step.total.where(self.reached, 0.0)
            sums = self.programs.alignment(compared, auxiliary, applied, self.shared_layers.members)
            if measure:
                self.tally.add_alignment(sums)
            if balance:
                self._balance(sums)
        gradient = step.total
        if step.auxiliary is not None and self.whole:
            gradient = self.programs.signal(
                step.total,
                step.auxiliary,
                self.alpha[:, None],
                self.data.keys["noise"],
                self.data.global_step - 1,  # the counter has moved on
                self.shared_layers.members,
                self.shared_layers.inside,
            )
        if self.clip is not None:
            gradient = self.programs.clip(gradient, self.clip)
        rate = self.rates.index_select(1, (self.data.step - 1)[None])  # the counter has moved on
        self.programs.update(self.weights, gradient, self.moments, rate, self.decay)
        if self.average is not None:
            self.programs.average(self.average, self.weights, self.averaging, self.moments.updates - 1)
        self.tally.add_losses(step.main_loss, step.auxiliary_loss, step.correct, batch.weight.sum())

    def _balance(self, sums: Tensor) -> None:
        """Set the scale for the next steps from the `alignment_sums` of this one."""
        assert self.scale is not None
        _, main, auxiliary = sums.sum(2)
        scale = (main / auxiliary).sqrt().float()
        self.scale.copy_(scale.where(scale.isfinite(), self.scale))

    @torch.no_grad()
    def answer(self, images: Tensor, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, list[float]]:
        """Which of images[indices] each run classifies right, and its confidence: indices (R, n) -> (R, n) twice.

        Also each run's accuracy, NaN if its logits are not all finite.
        """
        runs, count = indices.shape
        weights = (self.weights if self.average is None else self.average).to(self.dtype)
        # Fewer if images are larger; at least a training batch, which is known to fit.
        most = EVALUATION_IMAGES * _NUMBERS // max(_NUMBERS, prod(self.image_shape))
        batched = self.strategy == "batched"
        if not batched:
            most = max(most, self.data.batch)
        else:
            # On a GPU at least as many as need the memory of a training step: launches dominate with small chunks.
            most = max(1, most // runs, 0 if self.captured is None else _EVALUATED_BATCHES * self.data.batch)
        size = -(-count // max(1, -(-count // most)))  # chunks of equal size: little padding
        parameters = [self.parameters.views(part) for part in (weights[None] if batched else weights[:, None])]
        right, sure, finite = [], [], torch.ones(runs, dtype=torch.bool, device=self.device)
        for chosen in indices.split(max(1, size), 1):
            # Padding the last chunk keeps one shape, so that one compiled program serves all.
            filled = torch.nn.functional.pad(chosen, (0, size - chosen.shape[1]))
            with compiler_settings() if self.captured else nullcontext():
                logits = self._logits(parameters, self.programs.chunk(images, filled))
            logits = logits[:, : chosen.shape[1]]
            right.append(MAIN.correct(logits, labels[chosen]))
            sure.append(confidence(logits))
            finite &= logits.isfinite().flatten(1).all(1)
        joined = torch.cat(right, 1)
        return joined, torch.cat(sure, 1), joined.double().mean(1).where(finite, torch.nan).tolist()

    def results(self) -> list[Run]:
        """The record of each run; call it once the stack is finished."""
        name, runs = device_name(self.device), []
        for r, (spec, epochs) in enumerate(zip(self.specs, self.histories, strict=True)):
            lost = self.diverged[r]
            outcome: Literal["finished", "diverged"] = "diverged" if lost else "finished"
            run = Run(spec, tuple(epochs), outcome, name, self.strategy)
            final = {"answers": self.answers[r], "calibration_error": self.calibration[r]}
            runs.append(run if lost else replace(run, **final))  # type: ignore[arg-type]
        return runs

    def state(self) -> dict[str, Tensor]:
        """The tensors from which, with `epoch`, `step`, `histories` and `diverged`, this stack can resume."""
        return {
            "weights": self.weights,
            "first": self.moments.first,
            "second": self.moments.second,
            "updates": self.moments.updates,
            **{f"buffer.{name}": value for name, value in self.buffers.items()},
            **({} if self.average is None else {"average": self.average}),
            **({} if self.scale is None else {"scale": self.scale}),
            **self.tally.state(),
        }

    def changing(self) -> dict[str, Tensor]:
        """All tensors that a step changes."""
        return {**self.state(), "step": self.data.step, "global_step": self.data.global_step}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state`, in place: captured graphs keep their addresses."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def _open_epoch(self) -> None:
        """Set the rates, alphas and batches of the current epoch, at its next step."""
        rates = [schedule.learning_rates(spec, self.epoch, self.data.steps) for spec in self.specs]
        self.rates.copy_(torch.from_numpy(np.stack(rates)))  # values too large for float32 become inf, without an error
        self.alpha.copy_(_column([schedule.alpha_at(spec, self.epoch) for spec in self.specs])[:, 0])
        self.data.start_epoch(self.epoch, self.step)

    def _measures_at(self, step: int) -> bool:
        """Whether this step of the current epoch measures the cosine."""
        if isinstance(self.network, ModuleNetwork) and not self.network.points:
            return False  # without layers there are no gradients to compare
        steps = self.data.steps
        return schedule.measures_at(self.lead.cosine_every, self.epoch * steps + step, steps)

    def _balances_at(self, step: int) -> bool:
        """Whether this step of the current epoch sets the scale of the auxiliary gradient."""
        return schedule.balances_at(self.lead, self.epoch * self.data.steps + step)

    def _close_epoch(self, start: float) -> None:
        totals = self.tally.read(self.data.images_seen)
        # The last step may make weights infinite, which no loss shows; a second moment of inf freezes a weight.
        tensors = (self.weights, self.moments.first, self.moments.second, *self.finite_buffers)
        finite = torch.stack([value.isfinite().reshape(len(value), -1).all(1) for value in tensors]).all(0).tolist()
        accuracies = self._accuracies()
        self.seconds += time.perf_counter() - start
        for r, spec in enumerate(self.specs):
            # A Plain run was measured at its neighbours' steps, or over the parameters before their layers.
            elsewhere = isinstance(self.network, ModuleNetwork) and spec.redundancy == 0
            if spec.cosine_every != self.lead.cosine_every or elsewhere:
                totals[r] = totals[r]._replace(main_norm=None)
            share = self.seconds / len(self.specs)  # a run's share of the stack's time
            record = epoch_record(spec, self.epoch + 1, totals[r], accuracies[r], share)
            self.diverged[r] = self.diverged[r] or not (finite[r] and record.is_finite)
            if not self.diverged[r]:
                self.histories[r].append(record)
        self.tally.clear()
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0

    def _programs(self) -> Programs:
        programs = Programs(
            losses=self.loss,
            gather=self.parameters.gather,
            forward=self.loss.logits,
            next_batch=self.data.next_batch,
            chunk=self.data.chunk,
            signal=update_gradient(self.lead.signal),
        )
        return programs if self.device.type != "cuda" or self.captured is None else self.compiled(programs)

    def compiled(self, programs: Programs) -> Programs:
        """The programs of this stack, compiled for a GPU."""
        spec, runs = self.specs[0], len(self.specs) if self.strategy == "batched" else 1
        shapes = (self.image_shape, self.parameters, self.dtype, runs, spec.batch)
        key = (spec.arch, spec.arch_options, self.network.classes, *shapes)
        batched = self.strategy == "batched"
        if not isinstance(self.network, ModuleNetwork):
            return programs.compiled(key, gather=batched)
        assert not batched
        own = (spec.arch, spec.arch_options, self.network.settings, self.network.classes, self.image_shape, spec.batch)
        parts = ModuleParts(own, self.loss, kinds_of(self.specs), self._record)
        return programs.compiled(key, gather=batched, module=parts)

    def _record(self, runs: int) -> Recorded | None:
        """The forward of `runs` runs, recorded on a batch of the first run's images."""
        assert isinstance(self.network, ModuleNetwork)
        # Always a whole batch, even with fewer images: a stack with more images gets the same record.
        chosen = torch.arange(self.data.batch, device=self.device) % self.data.train.shape[1]
        images = self.data.chunk(self.data.images, self.data.train[:, chosen])[:1]
        training = Training(self.buffers, self.data.keys["draws"], self.data.global_step).of_runs(slice(1))
        return record(self.network, self.parameters.views(self.weights[:1]), images, training, runs=runs)

    def _logits(self, parameters: Sequence[Parameters], images: Tensor) -> Tensor:
        """Logits (R, B, C) without dropout, by one call for each item of `parameters`."""
        # For a module only its own parameters, so that the compiled code does not depend on the branches.
        trained = self.network.trained if isinstance(self.network, ModuleNetwork) else parameters[0].keys()
        own = [name for name in parameters[0] if name in trained]  # in the same order in every process
        size = len(images) // len(parameters)  # runs of a call
        logits = []
        for call, values in enumerate(parameters):
            part = slice(call * size, (call + 1) * size)
            buffers = {name: value[part] for name, value in self.buffers.items()}
            logits.append(self.programs.forward({name: values[name] for name in own}, images[part], buffers))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _accuracies(self) -> list[Accuracies]:
        """Each run's accuracies on validation and test images, None where the spec does not ask for them."""
        validation: Sequence[float | None] = [None] * len(self.specs)
        test = validation
        if self.data.validation.shape[1]:
            *_, validation = self.answer(self.data.images, self.data.clean_labels, self.data.validation)
        if schedule.tests_at(self.specs[0], self.epoch):
            everything = torch.arange(len(self.data.test_labels), device=self.device).expand(len(self.specs), -1)
            right, sure, test = self.answer(self.data.test_images, self.data.test_labels, everything)
            if self.epoch + 1 == self.specs[0].epochs:
                rows = list(zip(sure.cpu().numpy(), right.cpu().numpy(), strict=True))
                self.answers = [np.packbits(right).tobytes() for _, right in rows]
                self.calibration = [calibration_error(sure, right) for sure, right in rows]
        return list(zip(validation, test, strict=True))

    def _vector(self, field: str) -> Tensor:
        """One field of each run's spec, (R, 1)."""
        return _column([getattr(spec, field) for spec in self.specs]).float().to(self.device)

    def _decay(self, start: dict[str, Tensor]) -> Tensor:
        members = [spec if spec.redundancy else self.lead for spec in self.specs]
        own = {name: value[0] if name.count(".") > 1 and is_branch(name) else value for name, value in start.items()}
        decayed = [frozenset(name for name in own if decays(spec, name, own[name])) for spec in members]
        strength = self._vector("weight_decay")
        if all(len(names) == len(start) for names in decayed):
            return strength
        # Each mask is as large as a run's parameters, so only distinct ones are copied to the device.
        masks = {names: self.parameters.mask(names).to(self.device) for names in set(decayed)}
        return strength * torch.cat([masks[names] for names in (decayed if len(masks) > 1 else decayed[:1])])

    def _reached_masks(self, sample: Tensor) -> Tensor | None:
        """Masks (R, P) of the parameters that each run's auxiliary loss reaches; None if all have all branches."""
        if all(spec.layers == "all" for spec in self.specs):
            return None
        masks = {
            layers: self.parameters.mask(setup.reached_by_branches(self.network, sample, layers)).bool()
            for layers in {spec.layers for spec in self.specs}
        }
        return torch.cat([masks[spec.layers] for spec in self.specs]).to(self.device)


def _column(values: list[float]) -> Tensor:
    """One value for each run, (R, 1), in float64: too large values later become inf in float32, without an error."""
    return torch.tensor(values, dtype=torch.float64)[:, None]
