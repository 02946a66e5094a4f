"""The algorithm for Composer, in Composer's own trainer: training as by hand, checkpoints of the bare model."""

import gc
import warnings

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, CLASSES, LAYERS, Net, assert_no_hooks, assert_same_bits, by_hand, examples, seeded
from torch.utils.data import DataLoader, TensorDataset

from asymtrain import UsageError
from asymtrain.branches import Falling
from asymtrain.errors import UsageWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    composer = pytest.importorskip("composer", reason="Composer (mosaicml) imports beside few builds of torch")

from composer.loggers import InMemoryLogger
from composer.models import ComposerModel

from asymtrain.integrations.composer import BranchesAlgorithm

pytestmark = pytest.mark.filterwarnings("ignore:(?!.*attached anew)")  # Composer is older than this torch


@pytest.fixture(autouse=True)
def _temporary_folders():
    """Composer leaves them to the garbage collector, which warns: here, and not in a later test."""
    yield
    gc.collect()


class Wrapped(ComposerModel):
    """The network as Composer calls it."""

    kind = "tensor"

    def __init__(self):
        super().__init__()
        self.net = seeded(Net)

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch, *args, **kwargs):
        loss = F.cross_entropy(outputs, batch[1])
        return {"tensor": loss, "dict": {"total": loss, "other": loss}, "tuple": (loss, 0 * loss)}[self.kind]


AT = {"at": "net.blocks.*", "classes": CLASSES}


def fit(model, *algorithms, epochs="2ep", again=None, loader=None, **options):
    loader = loader or DataLoader(TensorDataset(*examples()), batch_size=BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = composer.Trainer(
        model=model, train_dataloader=loader, optimizers=optimizer, max_duration=epochs, algorithms=list(algorithms),
        device="cpu", progress_bar=False, log_to_console=False, seed=1, **options,
    )  # fmt: skip
    trainer.fit()
    if again:
        with pytest.warns(UsageWarning, match="stripped: attached anew"):
            trainer.fit(duration=again)
    trainer.close()
    return trainer


@pytest.mark.parametrize("kind", ["tensor", "dict", "tuple"])
def test_outputs_of_any_kind_train_what_a_loop_by_hand_trains(kind):
    model, alone = Wrapped(), seeded(Net)
    model.kind = kind
    added = BranchesAlgorithm(strength=0.5, **AT)
    trainer = fit(model, added)
    by_hand(alone, strength=0.5)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(model.net.state_dict()[name], value)
    assert added.branches.stripped
    assert set(trainer.state.optimizers[0].state) == set(model.parameters())
    assert model.state_dict().keys() == Wrapped().state_dict().keys()
    assert_no_hooks(model)


def test_strength_0_is_the_trainer_alone():
    """In microbatches, of which Composer scales the loss."""
    plain, model = Wrapped(), Wrapped()
    fit(plain, device_train_microbatch_size=BATCH // 2)
    fit(model, BranchesAlgorithm(strength=0, **AT), device_train_microbatch_size=BATCH // 2)
    assert_same_bits(model, plain)


def test_microbatches_change_nothing():
    whole, parts = Wrapped(), Wrapped()
    fit(whole, BranchesAlgorithm(**AT))
    fit(parts, BranchesAlgorithm(**AT), device_train_microbatch_size=BATCH // 4)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, atol=1e-4, rtol=1e-4)


def test_checkpoints_are_the_model_s_and_resume_with_the_branches(tmp_path):
    whole, resumed, added, again = (
        Wrapped(),
        Wrapped(),
        *(BranchesAlgorithm(strength=Falling(2.0), **AT) for _ in range(2)),
    )
    saving = {"save_folder": str(tmp_path), "save_interval": "1ep", "save_filename": "{epoch}.pt"}
    fit(whole, added, epochs="3ep", **saving)
    saved = torch.load(tmp_path / "2.pt", weights_only=False)["state"]
    assert saved["model"].keys() == Wrapped().state_dict().keys()
    fit(resumed, again, epochs="3ep", load_path=str(tmp_path / "2.pt"))
    assert_same_bits(resumed, whole)
    assert_same_bits(again.branches, added.branches)


def test_what_is_logged_and_that_measuring_changes_nothing():
    model, silent, logger = Wrapped(), Wrapped(), InMemoryLogger()
    fit(model, BranchesAlgorithm(every=4, **AT), loggers=[logger])
    fit(silent, BranchesAlgorithm(every=0, **AT))
    names = ["main_loss", "auxiliary_loss", *(f"auxiliary_loss/net.{layer}" for layer in LAYERS), "gradient_cosine"]
    for name in names:
        assert len(logger.data[f"loss/train/{name}"]) == 3, name
    assert_same_bits(model, silent)


def test_averages_and_soft_targets_train_with_it():
    """Composer's own algorithms."""
    from composer.algorithms import EMA, MixUp

    averaged, alone = Wrapped(), Wrapped()
    fit(averaged, BranchesAlgorithm(strength=0, **AT), EMA(half_life="2ba"))
    fit(alone, EMA(half_life="2ba"))
    assert_same_bits(averaged, alone)
    seen = []
    mixed = BranchesAlgorithm(targets=lambda batch: seen.append(batch[1]) or batch[1], **AT)
    fit(Wrapped(), mixed, MixUp())
    assert {targets.shape for targets in seen} == {(BATCH, CLASSES)}


def test_a_part_of_the_model_a_second_fit_and_what_is_refused():
    with pytest.raises(UsageError, match="unknown part of Wrapped 'nett': did you mean 'net'"):
        fit(Wrapped(), BranchesAlgorithm(model="nett", sample=examples()[0][:2], classes=CLASSES))
    with pytest.raises(UsageError, match="give sample=, what 'net' is called with"):
        BranchesAlgorithm(model="net", classes=CLASSES)
    part = BranchesAlgorithm(model="net", sample=examples()[0][:2], at="blocks.*", classes=CLASSES)
    model = Wrapped()
    fit(model, part, epochs="1ep", again="1ep")
    assert part.branches.layers == tuple(LAYERS)
    assert part.branches.stripped
    assert_no_hooks(model)
