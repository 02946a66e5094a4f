"""The Lightning callback: training as by hand, checkpoints of the bare module, nothing left behind."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from adapters import (
    BATCH,
    CLASSES,
    LAYERS,
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

from asymtrain import UsageError
from asymtrain.branches import Falling, Parallel
from asymtrain.errors import UsageWarning

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

from lightning.pytorch.callbacks import (  # noqa: E402
    Checkpoint,
    EMAWeightAveraging,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

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
    given = {"model": "net", "at": "blocks.*", "classes": CLASSES, "sample": examples()[0][:2]}
    return BranchesCallback(**given | options)


def trainer(*callbacks, epochs=2, logged_every=2, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if not any(isinstance(one, Checkpoint) for one in callbacks):
        quiet["enable_checkpointing"] = False
    return lightning.Trainer(max_epochs=epochs, callbacks=list(callbacks), log_every_n_steps=logged_every, **quiet,
                             **options)  # fmt: skip


@pytest.fixture(autouse=True)
def _remarks():
    """Lightning tells about data loader workers and idle GPUs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", "GPU available but not used.*")
        warnings.filterwarnings("ignore", r"`?\.fit\(ckpt_path=.*")
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
        yield


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulate": 2}, {"bf16": True}, {"head": Parallel(2, activation="all")}],
    ids=str,
)
def test_it_trains_what_a_loop_by_hand_trains(settings):
    options = {name: value for name, value in settings.items() if name == "head"}
    more = {"precision": "bf16-mixed"} if "bf16" in settings else {}
    module, added = Module(), callback(**options)
    run = trainer(added, accumulate_grad_batches=settings.get("accumulate", 1), **more)
    run.fit(module, loader())
    alone = seeded(Net)
    branches = by_hand(alone, **settings)
    assert_same_bits(module.net, alone)
    assert_same_bits(added.branches, branches)
    assert module.seen == 12
    assert added.branches.stripped
    assert set(run.optimizers[0].state) == set(module.net.parameters())
    assert [len(group["params"]) for group in run.optimizers[0].param_groups] == [6]
    if not settings:
        assert_bare(module.net)


def test_strength_0_is_the_fit_alone():
    """Clipping too: a gradient of zeros would count in the norm, whose last bit depends on the number of parts."""
    plain, module = Module(), Module()
    trainer(accumulate_grad_batches=2, gradient_clip_val=0.01).fit(plain, loader())
    trainer(callback(strength=0), accumulate_grad_batches=2, gradient_clip_val=0.01).fit(module, loader())
    assert_same_bits(module, plain)


def test_what_is_logged_and_that_measuring_changes_nothing():
    module, other = Module(), Module()
    run = trainer(callback(), epochs=1)
    run.fit(module, loader())
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    losses = {"main_loss", "auxiliary_loss", *(f"auxiliary_loss/{layer}" for layer in LAYERS)}
    assert logged.keys() == losses | {"gradient_cosine"}
    by_layer = [logged[f"auxiliary_loss/{layer}"] for layer in LAYERS]
    assert logged["auxiliary_loss"] == pytest.approx(0.5 * sum(by_layer) / 2)
    assert -1 <= logged["gradient_cosine"] <= 1
    run = trainer(callback(cosine=False), epochs=1)
    run.fit(other, loader())
    assert run.callback_metrics.keys() == losses
    assert_same_bits(module, other)


def resume(module, folder, *callbacks):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint.*")
        run = trainer(*callbacks, epochs=3)
        run.fit(module, loader(), ckpt_path=folder / "epoch=1.ckpt", weights_only=False)
    return run


def saving(folder):
    return ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)


def test_checkpoints_are_the_module_s_and_resume_with_the_branches(tmp_path):
    whole, added = Module(), callback(strength=Falling(2.0))
    trainer(added, saving(tmp_path), epochs=3).fit(whole, loader())
    bare = Module.load_from_checkpoint(tmp_path / "epoch=1.ckpt", strict=True)
    assert not torch.equal(bare.net.head.weight, whole.net.head.weight)
    resumed, again = Module(), callback(strength=Falling(2.0))
    resume(resumed, tmp_path, again)
    assert resumed.seen == 6
    assert_same_bits(resumed, whole)
    assert_same_bits(again.branches, added.branches)


def test_a_checkpoint_resumes_without_the_callback_and_a_plain_one_with_it(tmp_path):
    """The optimizer in a checkpoint is that of a fit without branches."""
    saved = []
    for kind, added in (("with", [callback()]), ("without", [])):
        trainer(*added, saving(tmp_path / kind), epochs=3).fit(Module(), loader())
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
    trainer(callback(), saving(tmp_path), epochs=2).fit(Module(), loader())
    with pytest.raises(UsageError, match=r"branches in the checkpoint are not like those .*: attach with the layers"):
        resume(Module(), tmp_path, callback(at="blocks.0"))


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


def test_a_module_that_is_the_network():
    named = [{"x": a, "label": b} for a, b in zip(*examples(), strict=True)]
    model, alone = seeded(Itself), seeded(Net)
    trainer(BranchesCallback(at="blocks.*", classes=CLASSES)).fit(model, DataLoader(named, batch_size=BATCH))
    by_hand(alone)
    assert_same_bits(model, alone)
    skipping = seeded(Itself)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*training_step.*returned.*None.*")
        added = BranchesCallback(at="blocks.*", classes=CLASSES)
        trainer(added, epochs=1).fit(skipping, DataLoader(named[:3], batch_size=1))
    assert_same_bits(skipping, seeded(Net))


def test_averaged_weights_are_those_of_a_fit_without_branches(tmp_path):
    """Lightning's callback copies the module while it trains."""
    trained = []
    for added in ([callback(strength=0)], []):
        module = Module()
        trainer(*added, EMAWeightAveraging(decay=0.5), saving(tmp_path)).fit(module, loader())
        assert_no_hooks(module)
        trained.append(module)
    assert_same_bits(*trained)
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=False)["state_dict"]
    assert saved.keys() == Module().state_dict().keys()


class Plain(Module):
    """Gradient descent, whose steps are as large as the gradients."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_gradients_of_the_branches_are_unscaled_too():
    module, alone, added = Plain(), Plain(), callback(strength=2.0)
    scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    trainer(added, epochs=1, plugins=scaled).fit(module, loader())
    expected = callback(strength=2.0)
    trainer(expected, epochs=1).fit(alone, loader())
    for half, whole in ((module, alone), (added.branches, expected.branches)):
        for name, value in whole.state_dict().items():
            torch.testing.assert_close(half.state_dict()[name], value, atol=2e-3, rtol=0.0)


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
def test_a_model_in_half_precision():
    """Lightning makes batches of that precision, and the sample must be alike."""
    module = Module()
    trainer(callback(), epochs=1, precision="bf16-true").fit(module, loader())
    assert module.net.head.weight.dtype == torch.bfloat16
    assert_no_hooks(module)


class Compiled(Module):
    def configure_model(self):
        self.net = torch.compile(self.net, backend="eager")


def test_a_part_that_the_module_compiles():
    """By Lightning it is there before the branches."""
    module, eager = Compiled(), Module()
    trainer(callback(strength=2.0), epochs=1).fit(module, loader())
    trainer(callback(strength=2.0), epochs=1).fit(eager, loader())
    assert_same_bits(module.net._orig_mod, eager.net)
    assert_no_hooks(module)


def test_a_module_that_is_compiled_whole_stays_compiled():
    named = DataLoader([{"x": x, "label": y} for x, y in loader()], batch_size=None)
    for build, part, batches in ((Module, "net", loader()), (Itself, "", named)):
        module, eager = seeded(build), seeded(build)
        with pytest.raises(UsageError, match="unknown part"):
            trainer(callback(model="nett"), epochs=1).fit(torch.compile(module, backend="eager"), batches)
        own = vars(module)["training_step"]  # Lightning has put a compiled one there
        for fitted in (module, eager):
            trainer(callback(model=part), epochs=1).fit(fitted, batches)
        assert vars(module)["training_step"] is own
        assert_same_bits(module, eager)
        assert_no_hooks(module)


class Twice(Module):
    forget = None

    def training_step(self, batch, batch_idx):
        noisy = self.net(batch[0] + 0.1)
        if self.forget is not None:
            self.forget.branches.forget()
        return F.mse_loss(self.net(batch[0]), noisy)


def test_a_step_of_two_calls_says_which_has_branches():
    with pytest.raises(UsageError, match=r"two calls of the model.*branches.forget\(\)"):
        trainer(callback()).fit(Twice(), loader())
    module, added = Twice(), callback()
    module.forget = added
    trainer(added).fit(module, loader())
    assert added.branches.stripped


def test_a_second_fit_attaches_again_and_says_so():
    module, added = Module(), callback()
    trainer(added, epochs=1).fit(module, loader())
    first = added.branches
    with pytest.warns(UsageWarning, match="stripped: attached anew"):
        trainer(added, epochs=1).fit(module, loader())
    assert added.branches is not first
    assert module.seen == 12
    assert "training_step" not in vars(module)
    assert_no_hooks(module)


class Failing(Module):
    def training_step(self, batch, batch_idx):
        if self.seen == 3:
            raise ArithmeticError
        return super().training_step(batch, batch_idx)


def test_an_exception_leaves_the_module_bare_and_a_checkpoint_that_resumes(tmp_path):
    module, added = Failing(), callback()
    with pytest.raises(ArithmeticError):
        trainer(added, OnExceptionCheckpoint(tmp_path)).fit(module, loader())
    assert "training_step" not in vars(module)
    assert_no_hooks(module)
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=False)
    assert sum(len(group["params"]) for group in saved["optimizer_states"][0]["param_groups"]) == 6
    state = saved["callbacks"][added.state_key]
    assert state["optimizer"].keys() == dict(added.branches.named_parameters()).keys()
    for name, value in added.branches.state_dict().items():
        assert torch.equal(state["branches"][name], value)


class Manual(Module):
    automatic = False


class Three(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch[:2], batch_idx)


def test_what_is_refused():
    with pytest.raises(UsageError, match="unknown part of Module 'nett': did you mean 'net'"):
        trainer(callback(model="nett")).fit(Module(), loader())
    with pytest.raises(UsageError, match=r"model= is the name of the part .*, such as model='net', got a Linear"):
        trainer(callback(model=torch.nn.Linear(2, 2))).fit(Module(), loader())
    with pytest.raises(UsageError, match="with manual optimization"):
        trainer(callback()).fit(Manual(), loader())
    with pytest.raises(UsageError, match="give sample=, or set the module's example_input_array"):
        trainer(callback(sample=None)).fit(Module(), loader())
    with pytest.raises(UsageError, match=r"targets must be a function from the batch .* str: leave it out"):
        callback(targets="label")
    with pytest.raises(UsageError, match="targets must be a tensor, got a NoneType"):
        trainer(callback(targets=lambda batch: None)).fit(Module(), loader())
    for kind in ("FSDPStrategy", "ModelParallelStrategy"):
        sharded = SimpleNamespace(strategy=type(kind, (), {})())
        with pytest.raises(UsageError, match=f"sharded by {kind}: .* fully_shard"):
            callback().setup(sharded, Module(), "fit")
    three = DataLoader(TensorDataset(*examples(), examples()[1]), batch_size=BATCH)
    with pytest.raises(UsageError, match="no labels were found in a batch that is a list"):
        trainer(callback()).fit(Three(), three)
