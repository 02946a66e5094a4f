"""Models that are no backbone: what a run is in a stack is what the reference makes of it alone."""

import dataclasses
import sys
from collections import OrderedDict

import any_models
import equivalence
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import assert_same_bits, spec_of, stack_of, weights_of, without_time
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from asymtrain import streams
from asymtrain.errors import UsageError, UsageWarning
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.arrays import Examples
from asymtrain.lab.engine import Stack, StackPlan, train_reference, train_stack
from asymtrain.lab.engine.draws import Draws
from asymtrain.lab.engine.modules import ModuleNetwork, read_logits
from asymtrain.lab.engine.plan import plan
from asymtrain.lab.runs import RunSpec


def examples(kind, count, classes=5):
    source = np.random.default_rng(count)
    labels = np.arange(count, dtype=np.int64) % classes
    if kind == "vectors":
        means = np.random.default_rng(0).standard_normal((classes, 10))
        return Examples((means[labels] + source.standard_normal((count, 10))).astype(np.float32), labels)
    words = source.integers(1, 12, (count, 10))
    words[:, :4] = labels[:, None] + 1 + source.integers(0, 3, (count, 4))
    return Examples(words, labels)


@pytest.fixture(scope="module")
def datasets():
    made = {
        kind: Dataset(kind, examples(kind, 200), examples(kind, 100), tuple("abcde")) for kind in ("vectors", "tokens")
    }
    return {"images": equivalence.patterns(), **made}


def module_spec(function, **fields):
    return RunSpec(arch=f"any_models:{function}", **{"batch": 36, "epochs": 20, "redundancy": 2, **fields})


STEPS = 11  # two epochs, whose last batches are shorter, and a step more

CASES = {
    "batch normalisation": ("resnet", "images", {}),
    "stochastic depth": ("mixer", "images", {"layout": "BTD"}),
    "dropout and tied weights": ("text_transformer", "tokens", {}),
    "vectors": ("vector_network", "vectors", {}),
    "replaced, infinite and frozen": ("centred", "vectors", {}),
    "one layer": ("vector_network", "vectors", {"at": ("0.1",)}),
    "mlp heads": ("resnet", "images", {"head": "mlp"}),
    "towers": ("resnet", "images", {"head": "tower", "decay": "matrices", "weight_decay": 0.5}),
    "towers that distill": ("resnet", "images", {"head": "tower", "objective": "distill", "activation": "all"}),
    "ratio of gradients": ("vector_network", "vectors", {"balance": "norms"}),
    "prior bias": ("vector_network", "vectors", {"bias": "prior", "objective": "softmax"}),
    "all branches": ("vector_network", "vectors", {"activation": "all", "redundancy": 3}),
    "short last batch": ("vector_network", "vectors", {"batch": 33}),
    "short batch dropped": ("vector_network", "vectors", {"batch": 33, "last_batch": "drop"}),
    "detached": ("vector_network", "vectors", {"signal": "detached"}),
    "gated": ("vector_network", "vectors", {"signal": "gated"}),
}


LONG = ("stochastic depth", "dropout and tied weights", "mlp heads", "towers that distill")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in LONG else []) for case in CASES]
)
def test_a_few_epochs_are_those_of_the_reference(case, datasets):
    function, kind, fields = CASES[case]
    specs = equivalence.mixed_specs(module_spec(function, **fields), 3)
    found = equivalence.measure_distances(specs, datasets[kind], device="cpu", strategy="side_by_side", steps=STEPS)
    equivalence.assert_near_the_reference(found)


@pytest.mark.slow
def test_a_hidden_layer_in_the_branches_of_a_backbone(datasets):
    specs = equivalence.mixed_specs(spec_of("mlp", head="mlp", epochs=20))
    found = equivalence.measure_distances(specs, datasets["images"], device="cpu", strategy="batched")
    equivalence.assert_near_the_reference(found)


@pytest.mark.slow
def test_a_hugging_face_model(datasets):
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
    options = {**sizes, "patch_size": 4, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    base = RunSpec(arch="hf:ViTConfig", arch_options=options, batch=36, epochs=20, redundancy=2, pool="class_token")
    specs = equivalence.mixed_specs(base, 2)
    found = equivalence.measure_distances(specs, datasets["images"], device="cpu", strategy="side_by_side", steps=6)
    equivalence.assert_near_the_reference(found)


TIMM = {
    "resnet18": {},
    "convnext_atto": {"drop_path_rate": 0.1},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 4, "drop_path_rate": 0.2},
    "mixer_s16_224": {"img_size": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm(name):
    pytest.importorskip("timm")
    images = equivalence.patterns(image_size=32)
    base = RunSpec(arch=f"timm:{name}", arch_options=TIMM[name], batch=24, epochs=5, learning_rate=3e-4)
    specs = [base, dataclasses.replace(base, seed=43, alpha=0.1)]
    found = equivalence.measure_distances(specs, images, device="cpu", strategy="side_by_side", steps=12)
    equivalence.assert_near_the_reference(found)


def test_rows_and_buffers_are_those_of_the_reference(datasets):
    spec, seen = module_spec("resnet", epochs=3, test="every", cosine_every=2), {}

    def keep(step, model):
        seen.update({name: value.clone() for name, value in model.named_buffers()})

    run = train_reference(spec, datasets["images"], on_step=keep)
    stack = stack_of([spec, dataclasses.replace(spec, seed=7)], datasets["images"], "side_by_side")
    assert stack.buffers.keys() == seen.keys()
    for name, value in seen.items():
        torch.testing.assert_close(stack.buffers[name][0], value, rtol=1e-4, atol=1e-5)
    assert stack.buffers["blocks.0.norm1.num_batches_tracked"].tolist() == [3 * stack.data.steps] * 2
    for ours, theirs in zip(stack.results()[0].history, run.history, strict=True):
        for field in ("main_loss", "auxiliary_loss", "cosine", "validation_accuracy", "test_accuracy", "main_norm"):
            assert getattr(ours, field) == pytest.approx(getattr(theirs, field), abs=1e-3), field


@pytest.mark.parametrize(
    ("function", "kind", "fields"),
    [CASES["stochastic depth"], pytest.param(*CASES["dropout and tied weights"], marks=pytest.mark.slow)],
)
def test_what_a_run_draws_does_not_depend_on_its_neighbours(function, kind, fields, datasets):
    spec = module_spec(function, epochs=2, **fields)
    neighbours = [dataclasses.replace(spec, seed=seed, alpha=3.0) for seed in (5, 6)]
    torch.manual_seed(0)
    together = stack_of([*neighbours, spec], datasets[kind], "side_by_side")
    torch.manual_seed(1)
    alone = stack_of([spec], datasets[kind], "side_by_side")
    assert_same_bits(weights_of(together, 2), weights_of(alone))
    without = {"dropout": 0.0} if kind == "tokens" else {"drop_path": 0.0}
    other = stack_of([dataclasses.replace(spec, arch_options=without)], datasets[kind], "side_by_side")
    assert not torch.equal(weights_of(other)["head.weight"], weights_of(alone)["head.weight"])


def test_plain_is_the_same_beside_any_branches(datasets):
    plain = module_spec("resnet", epochs=2).plain()
    beside = [module_spec("resnet", epochs=2, at=("blocks.0",)), plain]
    together = stack_of(beside, datasets["images"], "side_by_side")
    alone = stack_of([plain], datasets["images"], "side_by_side")
    assert_same_bits(weights_of(together, 1), weights_of(alone))
    runs = together.results()[1], alone.results()[0], train_reference(plain, datasets["images"])
    assert [epoch.main_norm for run in runs for epoch in run.history] == [None] * 6
    assert without_time(runs[0]) == without_time(runs[1])


@pytest.mark.parametrize(
    ("function", "kind", "fields"),
    [CASES["batch normalisation"], pytest.param(*CASES["dropout and tied weights"], marks=pytest.mark.slow)],
)
def test_killed_and_resumed_it_ends_with_the_same_rows(function, kind, fields, datasets, tmp_path):
    specs = [module_spec(function, epochs=3, seed=seed, **fields) for seed in (1, 2)]
    stack_plan = StackPlan(tuple(specs), "side_by_side")
    whole = train_stack(stack_plan, datasets[kind], torch.device("cpu"))
    steps = iter(range(100))
    ended = train_stack(
        stack_plan, datasets[kind], torch.device("cpu"), checkpoints=tmp_path, interrupt=lambda: next(steps) > 11
    )
    assert ended is None
    resumed = train_stack(stack_plan, datasets[kind], torch.device("cpu"), checkpoints=tmp_path)
    assert [without_time(run) for run in resumed] == [without_time(run) for run in whole]
    assert [run.answers for run in resumed] == [run.answers for run in whole]
    assert [run.calibration_error for run in resumed] == [run.calibration_error for run in whole]


def test_a_run_that_diverges_leaves_its_neighbours(datasets):
    calm = module_spec("resnet", epochs=2)
    stack = stack_of([dataclasses.replace(calm, learning_rate=1e30), calm], datasets["images"], "side_by_side")
    assert [run.outcome for run in stack.results()] == ["diverged", "finished"]
    assert_same_bits(weights_of(stack, 1), weights_of(stack_of([calm], datasets["images"], "side_by_side")))


def test_the_order_of_parameters_is_the_same_in_every_process(datasets):
    """That of a set of names is not: a compiler would not find what it compiled in an earlier process."""

    class Unordered(frozenset):
        def __iter__(self):
            raise AssertionError("the order of a set")

    stack = Stack([module_spec("vector_network", epochs=1)], datasets["vectors"], strategy="side_by_side")
    stack.network.trained = Unordered(stack.network.trained)
    stack.advance()
    assert stack.finished


class KeptStatistics(any_models.ResNet):
    def train(self, mode=True):
        super().train(mode)
        for block in self.blocks[:2]:
            block.norm1.eval()
        return self


def kept_statistics(classes, own_train=True):
    model = (KeptStatistics if own_train else any_models.ResNet)(classes)
    model.blocks[0].norm1.eval()
    return model


@pytest.mark.parametrize(("own_train", "kept"), [(True, 2), (False, 0)], ids=["a train of its own", "left in eval"])
def test_a_batch_normalisation_stays_in_evaluation_only_by_a_train_of_the_models_own(own_train, kept, datasets):
    spec = spec_of(arch=f"{__name__}:kept_statistics", arch_options={"own_train": own_train}, epochs=1)
    stack = stack_of([spec], datasets["images"], strategy="side_by_side")
    seen = [value.item() for name, value in stack.buffers.items() if name.endswith("num_batches_tracked")]
    assert (seen.count(0), seen.count(stack.data.steps)) == (kept, len(seen) - kept)


def test_a_stack_is_of_one_model_and_one_set_of_layers():
    base = module_spec("resnet")
    others = [dataclasses.replace(base, at=("blocks.0",)), dataclasses.replace(base, head="mlp")]
    stacks = plan([base, dataclasses.replace(base, seed=3), base.plain(), *others], torch.device("cpu"))
    assert {len({(s.at, s.head) for s in stack.specs if s.redundancy}) for stack in stacks} <= {0, 1}
    assert {stack.strategy for stack in stacks} == {"side_by_side"}


class Network(nn.Module):
    def __init__(self, classes, draw=None):
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(10, 10) for _ in range(3)))
        self.head, self.draw = nn.Linear(10, classes), draw

    def forward(self, x):
        return self.head(self.blocks(x if self.draw is None else self.draw(x)))


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(10, 10)

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def frozen_blocks(network):
    network.blocks.requires_grad_(False)
    return network


def test_a_layer_before_which_nothing_is_trained_reaches_nothing():
    model = Network(5).requires_grad_(False)
    model.blocks[1].requires_grad_(True)
    network = ModuleNetwork(model, 5, torch.randn(4, 10))
    assert network.reached_from(range(1)) == []
    assert network.reached_from(range(1, 2)) == network.reached == [f"blocks.1.{name}" for name in ("weight", "bias")]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Network(7), "gives 7 logits, and the data has 5 classes"),
        (lambda: Network(5, lambda x: x[torch.randperm(len(x))]), "cannot be keyed by a run's seed"),
        (lambda: Network(5, lambda x: x @ x), r"cannot be called|cannot be run"),
        (lambda: Network(5).requires_grad_(False), "no parameter of the model is trained"),
        (lambda: frozen_blocks(Network(5)), "no trained parameter lies before the layers blocks.0, blocks.1"),
        (lambda: Network(5, F.dropout), "draws random numbers in evaluation too"),
        (lambda: Network(5, Recomputed()), "computes parts of its forward again in the backward"),
        (lambda: nn.Sequential(OrderedDict(branch=Network(5))), "a part named `branch`"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model, message):
    with pytest.raises(UsageError, match=message):
        ModuleNetwork(model(), 5, torch.randn(4, 10))


class Counting(nn.Linear):
    """What it gives depends on how often it was called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * min(1, self.calls / 100)


def test_a_number_that_forwards_change_is_told_of():
    """It would be shared by runs, and a captured step would hold its first value."""
    with pytest.warns(UsageWarning, match=r"forward changes 0\.calls, a number that runs share.*register_buffer"):
        ModuleNetwork(nn.Sequential(Counting(4, 4), nn.Linear(4, 5)), 5, torch.randn(4, 4), at=["0"])


def test_a_backbone_refuses_layers_by_name():
    with pytest.raises(UsageError, match="mlp has layers and pooling of its own: its options are points"):
        RunSpec(at=("blocks.0",))
    with pytest.raises(UsageError, match="bias is for head='linear'"):
        RunSpec(head="mlp", bias="prior")


def test_dropping_the_only_batch_is_refused(datasets):
    spec = module_spec("vector_network", batch=500, last_batch="drop")
    with pytest.raises(UsageError, match="160 images are fewer than one batch of 500"):
        Stack([spec], datasets["vectors"], strategy="side_by_side")


def test_a_last_batch_of_one_is_refused_where_the_model_needs_more(datasets):
    spec = module_spec("vector_network", batch=53)
    with pytest.raises(UsageError, match="the last batch of an epoch has one example, and the model needs more"):
        Stack([spec], datasets["vectors"])
    Stack([dataclasses.replace(spec, last_batch="drop")], datasets["vectors"])


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_token_beyond_the_vocabulary_is_refused_before_the_training(part, datasets):
    given = getattr(datasets["tokens"], part)
    words = given.inputs.copy()
    words[-1, -1] = 12  # in one example, and not in the first
    changed = dataclasses.replace(datasets["tokens"], **{part: Examples(words, given.labels)})
    with pytest.raises(UsageError, match="the largest token is 12, which its vocabulary must hold"):
        Stack([module_spec("text_transformer")], changed)


def test_dropout_drops_the_same_on_every_device():
    """A GPU has one operation for it, a CPU several."""
    ones, kept = torch.ones(1000), []
    for drop in (lambda: F.dropout(ones, 0.3), lambda: torch.ops.aten.native_dropout(ones, 0.3, True)[0]):
        with Draws(torch.tensor(5), 3):
            kept.append(drop())
    assert torch.equal(*kept)


BLOCK = 1 << 14


@pytest.mark.parametrize("size", [0, 1, 7, BLOCK, 2 * BLOCK + 3])
@pytest.mark.parametrize("step", [3, torch.tensor(10**6)])
def test_numbers_drawn_on_a_cpu_are_those_of_the_streams(size, step):
    key, like = torch.tensor(streams.key(7, "draws")), torch.empty(size)
    draws = Draws(key, step)
    for count in range(2):
        assert torch.equal(draws.uniform(like), streams.uniform(key, step, count, torch.arange(size)))
    drawn = streams.uniform(key, step, 2, torch.arange(size))
    # Also at numbers that are drawn, and between these and the next ones: both sides compare in float32.
    edges = [value + shift for value in drawn[:20].tolist() for shift in (0, 1e-9, 2**-24)]
    for p in (*edges, 0.1, 1 - 0.1, 0.5, 1e-50, 0.0, 1.0, 1 - 1e-12, float("nan")):
        for dtype in (torch.bool, torch.float32, torch.bfloat16):
            draws.count = 2
            assert torch.equal(draws.below(like, p, dtype), (drawn < p).to(dtype))
            assert draws.count == 3


def test_a_tensor_is_drawn_over_in_its_own_memory():
    drawn = Draws(torch.tensor(5), 3).below(torch.empty(4, 6), 0.4, torch.float32)
    for dtype in (torch.float32, torch.bool, torch.bfloat16):
        for width in (6, 9):  # of rows, and of longer ones of which a part is drawn
            memory = torch.ones(4, width).to(dtype)
            values = memory[:, :6]
            with Draws(torch.tensor(5), 3):
                assert values.bernoulli_(0.4) is values
            assert torch.equal(memory[:, :6], drawn.to(dtype))
            assert memory[:, 6:].all()


def test_what_is_recorded_on_a_cpu_draws_anew_at_each_step():
    def dropped(step):
        with Draws(torch.tensor(5), step):
            return F.dropout(torch.ones(100), 0.3)

    recorded = make_fx(dropped)(torch.tensor(0))
    for step in (1, 2):
        assert torch.equal(recorded(torch.tensor(step)), dropped(torch.tensor(step)))
    assert not torch.equal(dropped(torch.tensor(1)), dropped(torch.tensor(2)))


def test_logits_are_the_output_its_logits_or_the_first_of_several():
    logits, other = torch.randn(2, 3), torch.randn(2, 3)
    for output in (logits, (logits, other), [logits], {"loss": other, "logits": logits}):
        assert read_logits(output) is logits
    for output, told in (
        ({"loss": other}, "returns a dict without `logits`"),
        (3, "returns a int without"),
        (logits[None], r"logits have shape \(1, 2, 3\), not \(batch, classes\)"),
    ):
        with pytest.raises(UsageError, match=told):
            read_logits(output)


assert any_models.__name__ in sys.modules  # specs name it: it must be importable
