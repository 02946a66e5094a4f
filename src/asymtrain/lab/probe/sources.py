"""Images as the batches that a probe takes."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import channel_statistics, normalise


class ImageBatches:
    """Normalised images (B, 3, H, W) and labels (B,), by number, in a random order of the seed's own."""

    def __init__(
        self, dataset: Dataset, batch: int, *, seed: int = 0, indices: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.images, self.labels = dataset.train.images, dataset.train.labels
        chosen = np.arange(len(self.labels)) if indices is None else indices
        if batch < 2:
            raise UsageError(f"a batch of {batch} is too small to probe with: give 16 or more")
        if len(chosen) < 2 * batch:
            raise UsageError(
                f"{len(chosen)} images are fewer than two batches of {batch}: give more, or a smaller batch"
            )
        order = torch.randperm(len(chosen), generator=streams.generator(seed, "probe images")).numpy()
        self.order, self.batch = chosen[order], batch
        self.mean, self.std = channel_statistics(dataset.train, chosen)

    def __len__(self) -> int:
        return len(self.order) // self.batch  # whole batches only

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        rows = self.order[number * self.batch : (number + 1) * self.batch]
        return normalise(torch.from_numpy(self.images[rows]), self.mean, self.std), torch.from_numpy(self.labels[rows])
