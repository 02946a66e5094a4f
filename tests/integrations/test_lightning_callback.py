"""The Lightning callback: training as by hand, checkpoints of the bare module, nothing left behind."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from adapters import (
    BATCH,
    CLASSES,
    WIDTH,
    Net,
    assert_bare,
    assert_no_hooks,
    assert_same_bits,
    by_hand,
    examples,
    seeded,
)
from torch.utils.data import DataLoader, TensorDataset

from asymtrain import UsageError, attach
from asymtrain.branches import Parallel

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint  # noqa: E402

from asymtrain.integrations.lightning import BranchesCallback  # noqa: E402


class Module(lightning.LightningModule):
    """The network as a user wraps it: `self.net(x)` in the step, a dict with the loss."""

    automatic = True

    def __init__(self):
        super().__init__()
        self.net = seeded(Net)
        self.automatic_optimization = self.automatic
        self.seen = 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        return {"loss": loss, "other": 1} if batch_idx % 2 else loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.named_parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def loader():
    return DataLoader(TensorDataset(*examples()), batch_size=BATCH)


def callback(**options):
    sample = examples()[0][:2]
    return BranchesCallback(**{"alpha": 0.5, "model": "net", "at": "blocks.*", "classes": CLASSES, "sample": sample,
                               "head": Parallel(2), **options})  # fmt: skip


def trainer(*callbacks, epochs=2, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if not any(isinstance(one, Checkpoint) for one in callbacks):
        quiet["enable_checkpointing"] = False
    return lightning.Trainer(max_epochs=epochs, callbacks=list(callbacks), log_every_n_steps=2, **quiet, **options)


@pytest.fixture(autouse=True)
def _remarks():
    """Lightning tells about data loader workers and idle GPUs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", "GPU available but not used.*")
        warnings.filterwarnings("ignore", r"`?\.fit\(ckpt_path=.*")
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
        yield


def test_a_step_of_two_calls_says_which_has_branches():
    class Twice(Module):
        forget = False

        def training_step(self, batch, batch_idx):
            noisy = self.net(batch[0] + 0.1)
            if self.forget:
                added.branches.forget()
            return F.mse_loss(self.net(batch[0]), noisy)

    module, added = Twice(), callback()
    with pytest.raises(UsageError, match=r"two calls of the model.*branches.forget\(\)"):
        trainer(added).fit(module, loader())
    module, added = Twice(), callback()
    module.forget = True
    trainer(added).fit(module, loader())
    assert added.branches.stripped


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize(
    "settings", [{}, {"accumulate": 2}, {"bf16": True}, {"head": Parallel(2, activation="all")}], ids=str
)
def test_it_trains_what_a_loop_by_hand_trains(settings):
    settings = {"alpha": 0.5, **settings}
    more = {"accumulate_grad_batches": settings.get("accumulate", 1)}
    if settings.get("bf16"):
        more["precision"] = "bf16-mixed"
    settings = {"head": Parallel(2), **settings}
    module, added = Module(), callback(alpha=settings["alpha"], head=settings["head"])
    run = trainer(added, **more)
    run.fit(module, loader())
    alone = seeded(Net)
    branches = by_hand(alone, epochs=2, **settings)
    assert_same_bits(module.net, alone)
    assert_same_bits(added.branches, branches)
    assert module.seen == 12
    assert added.branches.stripped
    assert set(run.optimizers[0].state) == set(module.net.parameters())
    assert [len(group["params"]) for group in run.optimizers[0].param_groups] == [6]
    assert len(added.alignments.seen) == 6
    if settings == {"alpha": 0.5}:
        assert_bare(module.net)


def test_what_is_logged():
    module, added = Module(), callback()
    run = trainer(added, epochs=1)
    run.fit(module, loader())
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    layers = ["auxiliary_loss/blocks.0", "auxiliary_loss/blocks.1"]
    assert logged.keys() == {"main_loss", "auxiliary_loss", *layers, "gradient_cosine"}
    assert logged["main_loss"] < logged["auxiliary_loss"]
    assert logged["auxiliary_loss"] == pytest.approx(sum(logged[name] for name in layers))
    assert logged["gradient_cosine"] == pytest.approx(added.alignments.seen[-1].cosine)
    silent = callback(every=0)
    trainer(silent, epochs=1).fit(Module(), loader())
    assert silent.alignments.seen == []


def test_measuring_changes_nothing():
    modules = [Module(), Module()]
    for module, every in zip(modules, (1, 0), strict=True):
        trainer(callback(every=every), epochs=1).fit(module, loader())
    assert_same_bits(*modules)


def test_checkpoints_are_the_module_s_and_resume_with_the_branches(tmp_path):
    whole, kept = Module(), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    trainer(callback(), kept, epochs=3).fit(whole, loader())
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=False)
    assert saved["state_dict"].keys() == Module().state_dict().keys()
    bare = Module.load_from_checkpoint(tmp_path / "epoch=1.ckpt", strict=True)
    assert not torch.equal(bare.net.head.weight, whole.net.head.weight)

    resumed = Module()
    again = trainer(callback(), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), epochs=3)
    again.fit(resumed, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", weights_only=False)
    assert resumed.seen == 6
    assert_same_bits(resumed, whole)


def test_alpha_0_is_the_fit_alone():
    """Clipping too: a gradient of zeros would count in the norm, whose last bit depends on the number of parts."""
    plain, module = Module(), Module()
    trainer(accumulate_grad_batches=2, gradient_clip_val=0.01).fit(plain, loader())
    trainer(callback(alpha=0.0), accumulate_grad_batches=2, gradient_clip_val=0.01).fit(module, loader())
    assert_same_bits(module, plain)


def resume(module, folder, *callbacks, epoch=1):
    run = trainer(*callbacks, epochs=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint.*")
        run.fit(module, loader(), ckpt_path=folder / f"epoch={epoch}.ckpt", weights_only=False)
    return run


def test_a_checkpoint_resumes_without_the_callback_and_a_plain_one_with_it(tmp_path):
    """The optimizer in a checkpoint is that of a fit without branches."""
    saved = []
    for kind, added in (("with", [callback()]), ("without", [])):
        kept = ModelCheckpoint(tmp_path / kind, filename="{epoch}", save_top_k=-1)
        trainer(*added, kept, epochs=3).fit(Module(), loader())
        saved.append(torch.load(tmp_path / kind / "epoch=1.ckpt", weights_only=False)["optimizer_states"][0])
    assert saved[0]["param_groups"] == saved[1]["param_groups"]
    assert saved[0]["state"].keys() == saved[1]["state"].keys()
    alone = Module()
    run = resume(alone, tmp_path / "with")
    assert alone.seen == 6
    assert len(run.optimizers[0].state) == 6
    added, joined = callback(), Module()
    resume(joined, tmp_path / "without", added)
    assert joined.seen == 6
    assert added.branches.stripped


def test_a_checkpoint_with_other_branches_is_refused(tmp_path):
    trainer(callback(), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), epochs=2).fit(Module(), loader())
    with pytest.raises(UsageError, match=r"branches in the checkpoint are not like those .*: attach with the layers"):
        resume(Module(), tmp_path, callback(at="blocks.0"))


class Scheduled(Module):
    """Schedulers that count the groups, one of them made of two."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        halved = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return [optimizer], [torch.optim.lr_scheduler.SequentialLR(optimizer, [constant, halved], [1])]


class Rates(lightning.Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, *_):
        groups = trainer.optimizers[0].param_groups
        self.seen.append([(group["lr"], group["weight_decay"], len(group["params"])) for group in groups])


@pytest.mark.parametrize("until", [None, 9, 0.5])
def test_branches_with_options_of_their_own_and_an_end(until, tmp_path):
    """Their group follows the schedule; checkpoints before and after the end resume to the same bits."""
    more = {"branch_options": {"lr": 0.1, "weight_decay": 0.5}, "until": until}
    whole, added, rates = Scheduled(), callback(**more), Rates()
    run = trainer(added, rates, ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1), epochs=3)
    run.fit(whole, loader())
    last = 18 if until is None else 9
    expected = [rate for rate in (0.01, 0.01, 0.005) for _ in range(6)]
    sizes = [2] * last + [0] * (18 - last)
    assert [groups[0] for groups in rates.seen] == [(pytest.approx(rate), 0.01, 6) for rate in expected]
    assert [groups[1] for groups in rates.seen] == [
        (pytest.approx(10 * rate), 0.5, size) for rate, size in zip(expected, sizes, strict=True)
    ]
    assert added.branches.stripped
    assert_no_hooks(whole)
    assert set(run.optimizers[0].state) == set(whole.net.parameters())
    for epoch in (0, 1):
        saved = torch.load(tmp_path / f"epoch={epoch}.ckpt", weights_only=False)
        assert (added.state_key in saved["callbacks"]) == (epoch == 0 or until is None)
        resumed = Scheduled()
        resume(resumed, tmp_path, callback(**more), epoch=epoch)
        assert_same_bits(resumed, whole)


def test_after_the_end_training_is_without_branches():
    """As a fit whose callback has alpha 0 from there on."""

    class Faded(lightning.Callback):
        def on_train_batch_start(self, run, *_):
            if run.global_step == 7:
                added.alpha = 0.0

    module, other, added = Module(), Module(), callback()
    trainer(callback(until=7)).fit(module, loader())
    trainer(added, Faded()).fit(other, loader())
    assert_same_bits(module, other)


def test_weights_only_checkpoints_and_those_after_the_fit_are_bare(tmp_path):
    module, added = Module(), callback()
    weights = ModelCheckpoint(tmp_path, filename="weights", save_weights_only=True)
    run = trainer(added, weights)
    run.fit(module, loader())
    run.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("weights.ckpt", "after.ckpt"):
        assert_same_bits(Module.load_from_checkpoint(tmp_path / name, strict=True), module)
    after = torch.load(tmp_path / "after.ckpt", weights_only=False)
    assert added.state_key not in after["callbacks"]
    assert sum(len(group["params"]) for group in after["optimizer_states"][0]["param_groups"]) == 6


class Itself(Net, lightning.LightningModule):
    """A module that is the network: `self(x)` in the step, its input known, a batch with names."""

    example_input_array = torch.zeros(2, WIDTH)

    def training_step(self, batch):
        return F.cross_entropy(self(batch["x"]), batch["label"]) if len(batch["x"]) > 1 else None

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.parameters(), lr=0.01)]


def test_a_module_that_is_the_network_with_branches_given_or_made():
    x, y = examples()
    batches = DataLoader([{"x": a, "label": b} for a, b in zip(x, y, strict=True)], batch_size=BATCH)
    alone = seeded(Net)
    by_hand(alone, alpha=0.3, epochs=1)
    made = seeded(Itself)
    trainer(BranchesCallback(alpha=0.3, at="blocks.*", classes=CLASSES), epochs=1).fit(made, batches)
    given = seeded(Itself)
    branches = attach(given, at="blocks.*", sample=x[:2], classes=CLASSES)
    trainer(BranchesCallback(alpha=0.3, branches=branches), epochs=1).fit(given, batches)
    assert_same_bits(made, alone)
    assert_same_bits(given, alone)


def test_a_step_without_a_loss_is_skipped():
    batches = DataLoader([{"x": a, "label": b} for a, b in zip(*examples(1), strict=True)], batch_size=1)
    model = seeded(Itself)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*training_step.*returned.*None.*")
        trainer(BranchesCallback(alpha=0.3, at="blocks.*", classes=CLASSES), epochs=1).fit(model, batches)
    assert_same_bits(model, seeded(Net))


def test_fit_again_attaches_again():
    module, added = Module(), callback()
    for _ in range(2):
        trainer(added, epochs=1).fit(module, loader())
    assert module.seen == 12
    assert "training_step" not in vars(module)


class Failing(Module):
    def training_step(self, batch, batch_idx):
        if self.seen == 3:
            raise ArithmeticError
        return super().training_step(batch, batch_idx)


def test_an_exception_leaves_the_module_bare_and_a_checkpoint_that_resumes(tmp_path):
    module, added = Failing(), callback()
    with pytest.raises(ArithmeticError):
        trainer(added, OnExceptionCheckpoint(tmp_path)).fit(module, loader())
    assert not {"training_step", "configure_optimizers"} & vars(module).keys()
    assert_no_hooks(module)
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=False)
    assert sum(len(group["params"]) for group in saved["optimizer_states"][0]["param_groups"]) == 6
    assert (
        saved["callbacks"][added.state_key]["optimizers"][0]["state"].keys()
        == dict(added.branches.named_parameters()).keys()
    )
    for name, value in added.branches.state_dict().items():
        assert torch.equal(saved["callbacks"][added.state_key]["branches"][name], value)


class Ready(Module):
    """Its optimizer exists before the fit."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def configure_optimizers(self):
        return self.optimizer


class Manual(Module):
    automatic = False


class Three(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx)


def test_what_is_refused():
    sample, init = examples()[0][:2], torch.optim.Optimizer.__init__
    branches = attach(Net(), sample, CLASSES, at="blocks.*")
    for options in ({}, {"at": "blocks.*"}, {"branches": branches, "classes": CLASSES}):
        with pytest.raises(UsageError, match="give either branches"):
            BranchesCallback(alpha=1.0, **options)
    with pytest.raises(UsageError, match="unknown part of Module 'nett': did you mean 'net'"):
        trainer(callback(model="nett")).fit(Module(), loader())
    with pytest.raises(UsageError, match="with manual optimization"):
        trainer(callback()).fit(Manual(), loader())
    with pytest.raises(UsageError, match="give sample=, or set the module's example_input_array"):
        trainer(callback(sample=None)).fit(Module(), loader())
    for until in (0, 0.0, 1.5, True, "half"):
        with pytest.raises(UsageError, match="until is a share of the training"):
            callback(until=until)
    with pytest.raises(UsageError, match=r"targets must be a function from the batch .* NoneType: leave it out"):
        callback(targets=None)
    with pytest.raises(UsageError, match="the targets function returned a NoneType: return a tensor"):
        trainer(callback(targets=lambda batch: None)).fit(Module(), loader())
    for alpha in (-0.1, None, "0.3", float("nan")):
        with pytest.raises(UsageError, match=f"alpha must be a number of 0 or more, got {alpha!r}"):
            callback(alpha=alpha)
    with pytest.raises(UsageError, match=r"until=0\.5 is a share of a training that has no end"):
        trainer(callback(until=0.5), epochs=-1).fit(Module(), loader())
    with pytest.raises(UsageError, match="make the optimizer inside configure_optimizers"):
        trainer(callback(branch_options={"lr": 0.1})).fit(Ready(), loader())
    with pytest.raises(UsageError, match="unknown option of AdamW in branch_options 'lrr'"):
        trainer(callback(branch_options={"lrr": 0.1})).fit(Module(), loader())
    with pytest.raises(UsageError, match="branch_options: lr must not be negative, got -1"):
        trainer(callback(branch_options={"lr": -1})).fit(Module(), loader())
    assert torch.optim.Optimizer.__init__ is init
    for kind in ("FSDPStrategy", "ModelParallelStrategy"):
        sharded = SimpleNamespace(strategy=type(kind, (), {})())
        with pytest.raises(UsageError, match=f"sharded by {kind}: .* fully_shard"):
            callback().setup(sharded, Module(), "fit")
    elsewhere = attach(Net(), at="blocks.*", sample=sample, classes=CLASSES)
    with pytest.raises(UsageError, match="on no part of this module"):
        trainer(BranchesCallback(alpha=1.0, branches=elsewhere)).fit(Module(), loader())
    three = DataLoader(TensorDataset(*examples(), examples()[1]), batch_size=BATCH)
    with pytest.raises(UsageError, match="no labels were found in a batch that is a list"):
        trainer(callback()).fit(Three(), three)


RANKS = """
import torch
from test_lightning_callback import Module, callback, examples, trainer
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Half(Module):
    def train_dataloader(self):  # every second example: with the other rank, the sixteen of a step by hand
        x, y = examples()
        return DataLoader(TensorDataset(x[self.global_rank :: 2], y[self.global_rank :: 2]), batch_size=8)


module = Half()
trainer(callback(every=3), devices=2, strategy="ddp_fork", use_distributed_sampler=False).fit(module)
torch.save(module.net.state_dict(), "trained.pt")
"""


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(tmp_path):
    """The branches are not in DDP's hands: were their gradients not averaged too, the backbone would be another."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RANKS], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    alone = seeded(Net)
    by_hand(alone, alpha=0.5, epochs=2, head=Parallel(2))
    for name, value in torch.load(tmp_path / "trained.pt").items():
        # Of two ranks the sums are in another order; without the average the difference is a hundredth.
        assert torch.allclose(value, alone.state_dict()[name], atol=1e-3), name
