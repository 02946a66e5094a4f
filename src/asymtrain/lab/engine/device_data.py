"""A stack's data on its device: one copy of the images, and for each run its own order, labels and normalisation.

Nothing here is copied to the host. The step counter is a tensor, so that a captured graph can be replayed.
"""

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import erase, mix, mixing_weights
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.losses import Batch
from asymtrain.lab.engine.modules import ModuleNetwork
from asymtrain.lab.engine.schedule import steps_of
from asymtrain.lab.engine.setup import (
    STREAMS,
    Network,
    RunData,
    dropout_mask,
    image_changes,
    layer_weights,
    mixing_tables,
    random_labels,
    stream_keys,
)  # fmt: skip
from asymtrain.lab.runs import RunSpec


class DeviceData:
    """Batches of R runs of equal training-set size."""

    def __init__(
        self,
        specs: list[RunSpec],
        dataset: Dataset,
        data: list[RunData],
        network: Network,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        lead = specs[0]
        self.network, self.dtype, self.device, self.batch = network, dtype, device, lead.batch
        self.channels_last = network.channels_last and device.type == "cuda" and dataset.kind == "images"
        self.images = self._store(torch.from_numpy(dataset.train.inputs))
        self.test_images = self._store(torch.from_numpy(dataset.test.inputs))
        self.clean_labels = torch.from_numpy(dataset.train.labels).to(device)
        self.test_labels = torch.from_numpy(dataset.test.labels).to(device)
        self.labels, self.train, self.validation, self.mean, self.std = (
            torch.stack([torch.as_tensor(getattr(run, name)) for run in data]).to(device)
            for name in ("labels", "train", "validation", "mean", "std")
        )
        self.keys = {purpose: stream_keys(specs, purpose, device) for purpose in STREAMS}
        self.lead = lead
        self.changes = image_changes(lead, device)
        self.erasing = (
            torch.tensor([[s.erasing] for s in specs], device=device) if any(s.erasing for s in specs) else None
        )
        self.mixup, self.cutmix = (mixing_tables(specs, field, device) for field in ("mixup", "cutmix"))
        weights = layer_weights(specs, len(network.points))
        self.layers = None if weights is None else weights.to(device)
        self.branch_labels: Tensor | None = None
        self.smoothing: Tensor | None = None
        if any(s.branch_labels == "random" for s in specs):
            self.branch_labels = self.labels.clone()
            for row, s in zip(self.branch_labels, specs, strict=True):
                if s.branch_labels == "random":
                    row.copy_(random_labels(s.seed, len(row), dataset.classes))
        if any(s.label_smoothing for s in specs):
            self.smoothing = torch.tensor([s.label_smoothing for s in specs], device=device)
        self.size = self.train.shape[1] * lead.passes
        self.steps, self.images_seen = steps_of(lead, self.train.shape[1])  # of an epoch: steps, and images
        filled = -(-self.size // self.batch) * self.batch
        self.order = torch.zeros(len(specs), filled, dtype=torch.int64, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)  # within the epoch
        self.global_step = torch.zeros((), dtype=torch.int64, device=device)

    def _store(self, images: Tensor) -> Tensor:
        return (images.permute(0, 2, 3, 1).contiguous() if self.channels_last else images).to(self.device)

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """Shuffle for an epoch (from 0) and set the counters to one of its steps."""
        images, passes = self.train.shape[1], self.lead.passes
        for i in range(passes):
            chosen = streams.permutations(self.keys["shuffle"], epoch * passes + i, images)
            self.order[:, i * images : (i + 1) * images] = self.train.gather(1, chosen)
        self.step.fill_(step)
        self.global_step.fill_(epoch * self.steps + step)

    def count_at(self, step: int) -> int:
        """The number of images in the batch at a step; a module's last batch is smaller, without images of weight 0."""
        if isinstance(self.network, ModuleNetwork):
            return min(self.batch, self.images_seen - step * self.batch)
        return self.batch

    def next_batch(self, count: int | None = None) -> Batch:
        """The batch at the step counter, which moves on; `count` is its size from `count_at`, by default a full one."""
        count = count or self.batch
        position = torch.arange(count, device=self.device)
        at = self.step * self.batch + position
        indices = self.order[:, at]
        images = self.images[indices]
        if self.channels_last:
            images = images.permute(0, 1, 4, 2, 3)
        for purpose, change in self.changes:
            images = change(images, self._bits(purpose, position))
        images = normalise(images, self.mean, self.std)
        if self.erasing is not None:
            images = erase(images, self._bits("erase", position), self.erasing, self.lead.erased_area)
        share = partners = None
        if self.mixup is not None or self.cutmix is not None:
            bits = streams.bits(self.keys["mix"], self.global_step)
            height, width = images.shape[-2:]
            weights = mixing_weights(bits, self.mixup, self.cutmix, height, width, self.lead.mixing)
            # Each image is mixed with the one before it, the first with the last that counts, as for a run alone.
            partner = torch.where(position == 0, (at < self.size).sum() - 1, position - 1)
            images, share = mix(images, images.index_select(1, partner), weights), weights.mean((1, 2))[:, None]
            partners = indices.index_select(1, partner)
        keep = None
        if self.network.dropout_width and self.network.dropout_rate:
            width, rate = self.network.dropout_width, self.network.dropout_rate
            keep = dropout_mask(self.keys["dropout"], self.global_step, count, width, rate).to(self.dtype)
        batch = Batch(
            images=self._cast(images),
            targets=self.labels.gather(1, indices),
            weight=(at < self.size).float(),
            keep=keep,
            branch_targets=_chosen(self.branch_labels, indices),
            smoothing=self.smoothing,
            share=share,
            other_targets=_chosen(self.labels, partners),
            other_branch_targets=_chosen(self.branch_labels, partners),
            layers=self.layers,
        )
        self.step += 1
        self.global_step += 1
        return batch

    def chunk(self, images: Tensor, indices: Tensor) -> Tensor:
        """Inputs for evaluation: indices (R, B) -> (R, B, ...), normalised."""
        images_of_runs = images[indices]
        return self._normalised(images_of_runs.permute(0, 1, 4, 2, 3) if self.channels_last else images_of_runs)

    def _bits(self, purpose: str, position: Tensor) -> Tensor:
        """Random bits for each image of the step, (R, B)."""
        return streams.bits(self.keys[purpose][:, None], self.global_step, position)

    def _normalised(self, images: Tensor) -> Tensor:
        return self._cast(normalise(images, self.mean, self.std))

    def _cast(self, inputs: Tensor) -> Tensor:
        if not inputs.is_floating_point():
            return inputs  # tokens are word indices
        inputs = inputs.to(self.dtype)
        if self.channels_last:
            # An augmentation may change the memory layout of images, and all later maps would inherit it.
            inputs = inputs.movedim(2, 4).contiguous().movedim(4, 2)
        return inputs


def _chosen(labels: Tensor | None, indices: Tensor | None) -> Tensor | None:
    """The labels (R, B) of the images at these indices; None if either is None."""
    return None if labels is None or indices is None else labels.gather(1, indices)
