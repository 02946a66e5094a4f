"""The mixin for the Trainer of transformers: training as by hand, checkpoints of the bare model, nothing left."""

import os
import pickle
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, CLASSES, Net, assert_bare, assert_no_hooks, assert_same_bits, by_hand, examples, seeded
from torch.utils.data import IterableDataset

from asymtrain import UsageError, attach
from asymtrain.branches import Parallel
from asymtrain.errors import UsageWarning
from asymtrain.objectives import Sigmoid

pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from accelerate.state import AcceleratorState  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from asymtrain.integrations._common import Adapter, labels_of, targets_of  # noqa: E402
from asymtrain.integrations.transformers import (  # noqa: E402
    FILE,
    BranchesMixin,
    BranchesTrainer,
    _refuse_many_devices,
)


@pytest.fixture(autouse=True)
def _own_precision(monkeypatch):
    """The precision of one trainer stays in the process, in the environment and in accelerate's state."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    AcceleratorState._reset_state(reset_partial_state=True)


class Labelled(Net):
    """The network as the Trainer calls it, with the mean over all that is accumulated, as models of transformers do."""

    def forward(self, x, labels=None, num_items_in_batch=None, **kwargs):
        logits = super().forward(x)
        if labels is None:
            return {"logits": logits}
        items = len(x) if num_items_in_batch is None else num_items_in_batch
        return {"loss": F.cross_entropy(logits, labels, reduction="sum") / items, "logits": logits}


class Averaged(Net):
    """A model that takes no count: the trainer divides its loss by the batches."""

    def forward(self, x, labels=None):
        logits = super().forward(x)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class InOrder(IterableDataset):
    """The examples, again and again."""

    def __iter__(self):
        while True:
            for x, y in zip(*examples(), strict=True):
                yield {"x": x, "labels": y}


def arguments(folder, **options):
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 2}
    sizes = {"per_device_train_batch_size": BATCH, "max_steps": 12, "lr_scheduler_type": "constant"}
    return TrainingArguments(str(folder), **{**quiet, **sizes, "max_grad_norm": 0.0, "seed": 0, **options})


def branches_on(model, **options):
    return attach(model, at="blocks.*", sample=examples()[0][:2], classes=CLASSES, **{"head": Parallel(2), **options})


def trainer_of(model, branches, folder, alpha=0.5, options=None, **more):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return BranchesTrainer(model, arguments(folder, **(options or {})), train_dataset=InOrder(), branches=branches,
                           alpha=alpha, optimizers=(optimizer, None), **more)  # fmt: skip


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize("kind", [Labelled, pytest.param(Averaged, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"bf16": True}], ids=str)
def test_it_trains_what_a_loop_by_hand_trains(settings, kind, tmp_path):
    settings = {"alpha": 0.5, **settings}
    accumulate = settings.get("accumulate", 1)
    options = {"gradient_accumulation_steps": accumulate, "max_steps": 12 // accumulate,
               "bf16": settings.get("bf16", False)}  # fmt: skip
    model = seeded(kind)
    branches = branches_on(model)
    trainer = trainer_of(model, branches, tmp_path, settings["alpha"], options)
    trainer.train()
    alone = seeded(Net)
    wanted = by_hand(alone, epochs=2, head=Parallel(2), **settings)
    assert_same_bits(model, alone)
    assert_same_bits(branches, wanted)
    assert branches.stripped
    assert set(trainer.optimizer.state) == set(model.parameters())
    if settings == {"alpha": 0.5} and kind is Labelled:
        bare = Net()
        bare.load_state_dict(model.state_dict(), strict=True)
        assert_bare(bare)
    assert_no_hooks(model)


def test_its_own_optimizer_has_the_branches_too(tmp_path):
    model = seeded(Labelled)
    branches = branches_on(model)
    before = branches.head("blocks.0").live.clone()
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            seen.append([len(group["params"]) for group in optimizer.param_groups])

    args = arguments(tmp_path, max_steps=2)
    BranchesTrainer(model, args, train_dataset=InOrder(), branches=branches, alpha=1.0, callbacks=[Look()]).train()
    assert [sum(groups) for groups in seen] == [8, 8]
    assert not torch.equal(branches.head("blocks.0").live, before)


def test_it_attaches_by_itself_what_attach_gives(tmp_path):
    """The sample is the first batch of the training data, and taking it moves no random state."""
    by_attach, alone = seeded(Labelled), seeded(Labelled)
    given = trainer_of(by_attach, branches_on(by_attach), tmp_path, options={"max_steps": 4})
    before = torch.get_rng_state()  # to which a trainer sets it
    given.train()
    trainer = trainer_of(alone, None, tmp_path, options={"max_steps": 4}, classes=CLASSES, head=Parallel(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.branches.layers == ("blocks.0", "blocks.1")
    trainer.train()
    assert_same_bits(alone, by_attach)
    with pytest.raises(UsageError, match="give either branches"):
        trainer_of(Labelled(), None, tmp_path)


def test_what_is_logged(tmp_path):
    model = seeded(Labelled)
    branches = branches_on(model)
    trainer = trainer_of(model, branches, tmp_path, options={"max_steps": 4})
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2
    for row, found in zip(rows, trainer.alignments.seen, strict=True):
        assert row["loss"] == pytest.approx(row["main_loss"] + 0.5 * row["auxiliary_loss"], abs=1e-4)
        assert row["auxiliary_loss"] == pytest.approx(row["auxiliary_loss/blocks.0"] + row["auxiliary_loss/blocks.1"])
        assert row["gradient_cosine"] == pytest.approx(found.cosine)
    silent = seeded(Labelled)
    other = trainer_of(silent, branches_on(silent), tmp_path, options={"max_steps": 4}, every=0)
    other.train()
    assert other.alignments.seen == []
    assert_same_bits(silent, model)  # measuring changes nothing


def test_checkpoints_are_the_model_s_and_resume_with_the_branches(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4, "ignore_data_skip": False}
    whole = seeded(Labelled)
    trainer_of(whole, branches_on(whole), tmp_path, options=saving).train()
    folder = tmp_path / "checkpoint-8"
    bare = Labelled()
    bare.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    assert load_file(folder / FILE).keys() == branches_on(seeded(Labelled)).state_dict().keys()

    resumed = seeded(Labelled, seed=5)
    trainer = trainer_of(resumed, branches_on(resumed), tmp_path, options=saving)
    trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.global_step == 12
    assert_same_bits(resumed, whole)


def test_a_training_that_was_interrupted_can_begin_again(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4, "max_steps": 5}
    model = seeded(Labelled)
    trainer_of(model, branches_on(model), tmp_path, options=saving).train()

    class Fail(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise InterruptedError

    model = seeded(Labelled)
    branches, fail = branches_on(model), Fail()
    weight = branches.head("blocks.0").live
    trainer = trainer_of(model, branches, tmp_path, options=saving)
    trainer.add_callback(fail)
    with pytest.raises(InterruptedError):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    trainer.remove_callback(fail)
    steps = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            if not branches.stripped:
                steps.append([int(optimizer.state[value]["step"]) for value in (weight, next(model.parameters()))])

    trainer.add_callback(Look())
    trainer.train()
    assert all(own == models for own, models in steps)
    assert steps


def test_the_optimizer_in_a_checkpoint_is_that_of_training_without_branches(tmp_path):
    """So a checkpoint goes on without branches, and one of training without them goes on with new ones."""
    saving = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    model = seeded(Labelled)
    trainer_of(model, branches_on(model), tmp_path / "with", options=saving).train()
    plain = seeded(Labelled)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    Trainer(plain, arguments(tmp_path / "without", **saving), train_dataset=InOrder(),
            optimizers=(optimizer, None)).train()  # fmt: skip
    first, second = (torch.load(tmp_path / kind / "checkpoint-4" / "optimizer.pt") for kind in ("with", "without"))
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()

    alone = seeded(Labelled, seed=5)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01)
    trainer = Trainer(alone, arguments(tmp_path / "with", **saving), train_dataset=InOrder(),
                      optimizers=(optimizer, None))  # fmt: skip
    trainer.train(resume_from_checkpoint=str(tmp_path / "with" / "checkpoint-4"))
    assert trainer.state.global_step == 8

    joined = seeded(Labelled, seed=5)
    branches = branches_on(joined)
    before = branches.head("blocks.0").live.clone()
    trainer_of(joined, branches, tmp_path, options=saving).train(str(tmp_path / "without" / "checkpoint-4"))
    assert not torch.equal(branches.head("blocks.0").live, before)


def test_a_checkpoint_with_other_branches_is_refused(tmp_path):
    model = seeded(Labelled)
    trainer_of(model, branches_on(model), tmp_path, options={"save_strategy": "steps", "save_steps": 4}).train()
    other = seeded(Labelled)
    branches = attach(other, at="blocks.0", sample=examples()[0][:2], classes=CLASSES)
    with pytest.raises(UsageError, match=r"branches in the checkpoint are not like those .*: attach with the layers"):
        trainer_of(other, branches, tmp_path).train(str(tmp_path / "checkpoint-4"))
    again = seeded(Labelled)
    trainer = trainer_of(again, branches_on(again), tmp_path, branch_options={"lr": 0.1})
    with pytest.raises(UsageError, match=r"written without branch_options.*: resume with the same branch_options"):
        trainer.train(str(tmp_path / "checkpoint-4"))


class Rates(TrainerCallback):
    """The learning rates and sizes of the optimizer's groups after each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append([(group["lr"], len(group["params"])) for group in optimizer.param_groups])


@pytest.mark.parametrize("until", [None, pytest.param(6, marks=pytest.mark.slow), 0.5])
def test_branches_with_options_of_their_own_and_an_end(until, tmp_path):
    """Their group follows the schedule, and checkpoints before, at and after the end resume to the same bits."""
    options = {"save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "linear", "max_steps": 12}
    more = {"branch_options": {"lr": 0.1, "weight_decay": 0.5}, "until": until}
    whole, rates = seeded(Labelled), Rates()
    branches = branches_on(whole)
    trainer = trainer_of(whole, branches, tmp_path, options=options, callbacks=[rates], **more)
    trainer.train()
    expected = [0.01 * (1 - step / 12) for step in range(1, 13)]
    assert [groups[0] for groups in rates.seen] == [(pytest.approx(rate), 6) for rate in expected]
    last = 12 if until is None else 6
    sizes = [2] * last + [0] * (12 - last)  # they are stripped after the callback has seen their last step
    assert [groups[1] for groups in rates.seen] == [
        (pytest.approx(10 * rate), size) for rate, size in zip(expected, sizes, strict=True)
    ]
    assert branches.stripped
    assert_no_hooks(whole)
    assert set(trainer.optimizer.state) == set(whole.parameters())
    assert (tmp_path / "checkpoint-3" / FILE).exists()
    assert (tmp_path / "checkpoint-6" / FILE).exists() == (until is None)
    for step in (3, 6, 9):
        resumed = seeded(Labelled, seed=5)
        again = trainer_of(resumed, branches_on(resumed), tmp_path / "again", options=options, **more)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert_same_bits(resumed, whole)
    logged = [row["step"] for row in trainer.state.log_history if "auxiliary_loss" in row]
    assert logged == [step for step in range(2, 13, 2) if step <= last]


def test_after_the_end_training_is_without_branches(tmp_path):
    """Weight by weight: two steps by hand with branches, then as the plain trainer goes on."""
    model = seeded(Labelled)
    branches = branches_on(model)
    trainer_of(model, branches, tmp_path / "with", options={"max_steps": 4}, until=2).train()
    ended = branches.head("blocks.0").live.clone()
    by_steps = seeded(Labelled)
    optimizer = torch.optim.AdamW(by_steps.parameters(), lr=0.01)
    added = branches_on(by_steps)
    optimizer.param_groups[0]["params"].extend(added.parameters())
    x, y = examples()
    for step, (inputs, targets) in enumerate(list(zip(x.split(BATCH), y.split(BATCH), strict=True))[:4]):
        if step == 2:
            added.strip(optimizer)
        loss = by_steps(inputs, targets)["loss"]
        # The sum that the trainer takes, which rounds otherwise than `added.loss`.
        loss = loss + 0.5 * sum(added.losses(targets).values()) if step < 2 else loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert_same_bits(model, by_steps)
    assert torch.equal(ended, added.head("blocks.0").live)


def sentences(count, labels):
    """Sentences of very different lengths, padded: means over batches are not the mean over tokens."""
    drawn = torch.Generator().manual_seed(3)
    rows = []
    for index in range(count):
        words = torch.randint(1, 20, (8,), generator=drawn)
        length = (2, 8, 3, 5)[index % 4]
        keep = torch.arange(8) < length
        words = torch.where(keep, words, 0)
        row = {"input_ids": words, "attention_mask": keep.long()}
        rows.append({**row, "labels": torch.where(keep, words, -100) if labels == "tokens" else words.sum() % 4})
    return rows


def causal_model():
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def classifier():
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 4}
    config = transformers.BertConfig(intermediate_size=8, max_position_embeddings=8, **sizes)
    return transformers.BertForSequenceClassification(config)


def on_next_tokens(model):
    rows = sentences(4, "tokens")
    sample = {"input_ids": torch.stack([row["input_ids"] for row in rows])}
    return attach(model, at="transformer.h.*", sample=sample, classes=20, layout="BTD",
                  pool=lambda hidden: hidden.flatten(0, 1))  # fmt: skip


def next_tokens(inputs):
    return F.pad(inputs["labels"][:, 1:], (0, 1), value=-100).flatten()


def on_sentences(model):
    sample = {"input_ids": torch.stack([row["input_ids"] for row in sentences(4, "tokens")])}
    return attach(model, at="bert.encoder.layer.*", sample=sample, classes=4, pool="class_token")


def summed_loss(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten(), reduction="sum") / num_items_in_batch


@pytest.mark.parametrize(
    ("build", "put", "labels", "more"),
    [
        (causal_model, on_next_tokens, "tokens", {"targets": next_tokens}),
        (classifier, on_sentences, "sentences", {}),
        (classifier, on_sentences, "sentences", {"compute_loss_func": summed_loss}),
    ],
    ids=["causal", "classifier", "loss function"],
)
def test_alpha_0_is_the_trainer_alone(build, put, labels, more, tmp_path):
    """Accumulated, padded, clipped, with dropout: the same bits, losses and gradient norms."""
    args = {"max_steps": 3, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2, "max_grad_norm": 0.1,
            "logging_steps": 1, "weight_decay": 0.1, "learning_rate": 0.01}  # fmt: skip
    plain, model = seeded(build), seeded(build)
    theirs = {key: value for key, value in more.items() if key != "targets"}
    alone = Trainer(plain, arguments(tmp_path, **args), train_dataset=sentences(24, labels), **theirs)
    alone.train()
    trainer = BranchesTrainer(model, arguments(tmp_path, **args), train_dataset=sentences(24, labels),
                              branches=put(model), alpha=0.0, **more)  # fmt: skip
    trainer.train()
    assert_same_bits(model, plain)
    rows, expected = ([row for row in one.state.log_history if "loss" in row] for one in (trainer, alone))
    assert len(rows) == 3
    assert [[row["loss"], row["grad_norm"]] for row in rows] == [[row["loss"], row["grad_norm"]] for row in expected]
    assert [row["main_loss"] for row in rows] == pytest.approx([row["loss"] for row in rows], abs=1e-4)


def without_dropout(model):
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def on_positions(model, **options):
    """Branches that keep positions, and shift the labels themselves."""
    sample = {"input_ids": torch.stack([row["input_ids"] for row in sentences(4, "tokens")])}
    return attach(model, at="transformer.h.*", sample=sample, classes=20, layout="BTD", pool="none", **options)


def on_positions_but_255(model):
    return on_positions(model, objective=Sigmoid(ignore_index=255), mask=None)


def on_positions_masked_by_a_function(model):
    return on_positions(model, mask=lambda **inputs: inputs["attention_mask"])


@pytest.mark.parametrize(
    ("put", "more"),
    [
        (on_next_tokens, {"targets": next_tokens}),
        (on_next_tokens, {"targets": next_tokens, "compute_loss_func": summed_loss}),
        (on_positions, {}),
        (on_positions, {"targets": lambda inputs: inputs["input_ids"]}),  # the mask alone says what is padding
        (on_positions_masked_by_a_function, {"targets": lambda inputs: inputs["input_ids"]}),
        (on_positions_but_255, {"targets": lambda inputs: inputs["labels"].masked_fill(inputs["labels"] < 0, 255)}),
    ],
    ids=["rows", "loss function", "positions", "masked positions", "a function's mask", "another ignored index"],
)
def test_alpha_does_not_depend_on_accumulation(put, more, tmp_path):
    """Eight sentences as one batch, and as four of two whose numbers of tokens differ."""
    trained, logged = [], []
    for accumulate in (1, 4):
        model = without_dropout(seeded(causal_model))
        args = arguments(tmp_path, max_steps=2, gradient_accumulation_steps=accumulate, logging_steps=1,
                         per_device_train_batch_size=8 // accumulate)  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = BranchesTrainer(model, args, train_dataset=sentences(16, "tokens"), branches=put(model),
                                  alpha=0.7, optimizers=(optimizer, None), **more)  # fmt: skip
        trainer.train()
        trained.append(model.state_dict())
        names = ("main_loss", "auxiliary_loss", "auxiliary_loss/transformer.h.0")
        logged.append([row[name] for row in trainer.state.log_history if "loss" in row for name in names])
    moved = max((value - seeded(causal_model).state_dict()[name]).abs().max() for name, value in trained[0].items())
    apart = max((value - trained[1][name]).abs().max() for name, value in trained[0].items())
    assert moved > 0.1
    assert apart < 1e-5
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


class Ignoring(Averaged):
    """Accepts the trainer's count and ignores it, as BERT for sequences does: the trainer adds up means."""

    def forward(self, x, labels=None, **kwargs):
        return super().forward(x, labels)


@pytest.mark.parametrize("kind", ["bert", Labelled, Averaged, Ignoring])
def test_the_gradients_keep_their_ratio_at_any_accumulation(kind, tmp_path):
    """The same 16 rows in 1, 2 and 4 batches: the auxiliary gradient is always the same share of the main one."""
    ratios = []
    for accumulate in (1, 2, 4):
        moved = []
        for alpha in (0.0, 1.0):
            model = without_dropout(seeded(classifier if kind == "bert" else kind))
            start = {name: value.detach().clone() for name, value in model.named_parameters()}
            args = arguments(tmp_path, max_steps=1, gradient_accumulation_steps=accumulate,
                             per_device_train_batch_size=BATCH // accumulate)  # fmt: skip
            put, rows = (on_sentences, sentences(BATCH, "row")) if kind == "bert" else (branches_on, InOrder())
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            BranchesTrainer(model, args, train_dataset=rows, branches=put(model), alpha=alpha, every=0,
                            optimizers=(optimizer, None)).train()  # fmt: skip
            moved.append(
                torch.cat([(value.detach() - start[name]).flatten() for name, value in model.named_parameters()])
            )
        ratios.append(float((moved[1] - moved[0]).norm() / moved[0].norm()))
    assert ratios == pytest.approx(3 * ratios[:1], rel=1e-3)


def test_a_second_training_says_that_it_has_no_branches(tmp_path):
    model = seeded(Labelled)
    trainer = trainer_of(model, branches_on(model), tmp_path, options={"max_steps": 1})
    trainer.train()
    with pytest.warns(UsageWarning, match="without them: .* attach anew"):
        trainer.train()


RANKS = """
import os

import torch
from test_transformers_mixin import (
    BranchesTrainer, arguments, causal_model, next_tokens, on_next_tokens, seeded, sentences, without_dropout
)

torch.set_num_threads(1)


class InTurn(BranchesTrainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


ranks = int(os.environ.get("WORLD_SIZE", 1))
model = without_dropout(seeded(causal_model))
args = arguments("out", max_steps=2, gradient_accumulation_steps=2, logging_steps=1, logging_strategy="steps",
                 per_device_train_batch_size=4 // ranks, **({"ddp_backend": "gloo"} if ranks > 1 else {}))
trainer = InTurn(model, args, train_dataset=sentences(16, "tokens"), branches=on_next_tokens(model), alpha=0.7,
                 targets=next_tokens, optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None))
trainer.train()
if trainer.is_world_process_zero():
    logged = [(row["main_loss"], row["auxiliary_loss"]) for row in trainer.state.log_history if "loss" in row]
    torch.save((model.state_dict(), logged), f"{ranks}.pt")
"""


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(tmp_path):
    """Sentences of different lengths on each rank; the mean is over the tokens of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":  # the address that the machine's own name stands for may not be reachable
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    (tmp_path / "ranks.py").write_text(RANKS)
    many = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    for start in ([], many):
        done = subprocess.run([sys.executable, *start, "ranks.py"], cwd=tmp_path, env=environment, timeout=300,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    (one, logged), (two, also) = (torch.load(tmp_path / f"{ranks}.pt") for ranks in (1, 2))
    assert all(torch.allclose(value, two[name], atol=1e-5) for name, value in one.items())
    assert len(logged) == 2
    for first, second in zip(logged, also, strict=True):
        assert first == pytest.approx(second, rel=1e-5)


def test_targets_keep_their_positions_but_for_a_pool_of_the_user_s(tmp_path):
    model = seeded(causal_model)
    labels = torch.zeros(4, 8, dtype=torch.int64)
    flat = on_next_tokens(model)
    assert targets_of({"labels": labels}, labels_of, flat).shape == (32,)
    assert targets_of({"labels": labels.float()}, labels_of, flat).shape == (4, 8)
    assert targets_of({"labels": labels}, lambda batch: batch["labels"], flat).shape == (4, 8)
    flat.strip()
    pooled = attach(model, at="transformer.h.*", sample={"input_ids": labels}, classes=20, layout="BTD")
    assert targets_of({"labels": labels}, labels_of, pooled).shape == (4, 8)


def test_a_targets_function_may_take_its_entry_out_of_the_inputs(tmp_path):
    class Named(InOrder):
        def __iter__(self):
            for row in super().__iter__():
                yield {**row, "other": row["labels"]}

    model = seeded(Averaged)
    args = arguments(tmp_path, max_steps=2, remove_unused_columns=False, gradient_accumulation_steps=2)
    BranchesTrainer(model, args, train_dataset=Named(), branches=branches_on(model), alpha=0.5,
                    targets=lambda inputs: inputs.pop("other")).train()  # fmt: skip


def test_the_mixin_goes_before_any_trainer_and_the_ready_class_is_one_of_them():
    assert BranchesTrainer.__bases__ == (BranchesMixin, Trainer)
    assert not [name for name in vars(Adapter) if not name.startswith("__") and hasattr(Trainer, name)]
    assert pickle.loads(pickle.dumps(BranchesTrainer)) is BranchesTrainer


def test_evaluation_has_the_model_s_loss_alone(tmp_path):
    model = seeded(Labelled)
    branches = branches_on(model)
    rows = [{"x": x, "labels": y} for x, y in zip(*examples(2), strict=True)]
    args = arguments(tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2 * BATCH)
    trainer = BranchesTrainer(model, args, train_dataset=InOrder(), eval_dataset=rows, branches=branches, alpha=100.0)
    trainer.train()
    found = next(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    x, y = examples(2)
    assert found == pytest.approx(F.cross_entropy(model(x)["logits"], y).item(), rel=1e-5)


def test_weights_of_layers_count(tmp_path):
    model = seeded(Labelled)
    weighted = branches_on(model, weights={"blocks.0": 3.0})
    trainer = trainer_of(model, weighted, tmp_path, options={"max_steps": 1, "logging_steps": 1})
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["auxiliary_loss"] == pytest.approx(3 * row["auxiliary_loss/blocks.0"] + row["auxiliary_loss/blocks.1"])


def test_labels_for_each_token_and_a_model_of_transformers(tmp_path):
    """BERT for tagging: a row and a target for each token, those of -100 left out; label smoothing takes the labels."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 4}
    silent = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(intermediate_size=8, max_position_embeddings=8, **sizes, **silent)
    model = transformers.BertForTokenClassification(config)
    words = torch.randint(0, 20, (8, 6))
    tags = torch.where(torch.rand(8, 6) < 0.3, -100, words % 4)
    branches = attach(model, at="bert.encoder.layer.*", sample={"input_ids": words}, classes=4,
                      pool=lambda hidden: hidden.flatten(0, 1))  # fmt: skip
    model.eval()
    model(input_ids=words)
    keep = tags.flatten() != -100
    goal = F.one_hot(tags.flatten()[keep], 4).float()
    wanted = sum(F.binary_cross_entropy_with_logits(one[keep], goal).item() for one in branches.logits().values())
    rows = [{"input_ids": word, "labels": tag} for word, tag in zip(words, tags, strict=True)]
    args = arguments(tmp_path, max_steps=1, logging_steps=1, label_smoothing_factor=0.1, per_device_train_batch_size=8)
    trainer = BranchesTrainer(model, args, train_dataset=rows, branches=branches, alpha=1.0)
    trainer.train()
    assert trainer.state.log_history[0]["auxiliary_loss"] == pytest.approx(wanted, rel=1e-5)
    assert_no_hooks(model)
    fresh = transformers.BertForTokenClassification(config)
    fresh.load_state_dict(model.state_dict(), strict=True)


def test_what_is_refused(tmp_path, monkeypatch):
    model, other = seeded(Labelled), seeded(Labelled)
    with pytest.raises(UsageError, match="on no part of this model"):
        trainer_of(model, branches_on(other), tmp_path)
    branches = branches_on(model)
    with pytest.raises(UsageError, match="alpha must be a number of 0 or more"):  # more in test_lightning_callback.py
        trainer_of(model, branches, tmp_path, -0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    counted = (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    with pytest.raises(UsageError, match="has counted the groups"):
        BranchesTrainer(model, arguments(tmp_path), branches=branches, alpha=1.0, optimizers=counted,
                        branch_options={"lr": 1.0})  # fmt: skip
    with pytest.raises(UsageError, match="unknown option of AdamW in branch_options 'lrr': did you mean 'lr'"):
        trainer_of(model, branches, tmp_path, branch_options={"lrr": 1.0}).train()
    with pytest.raises(UsageError, match="the optimizer has the branches' parameters already"):
        BranchesTrainer(model, arguments(tmp_path), train_dataset=InOrder(), branches=branches, alpha=1.0,
                        optimizers=(torch.optim.AdamW([*model.parameters(), *branches.parameters()]), None),
                        branch_options={"lr": 1.0}).train()  # fmt: skip
    sharded = types.SimpleNamespace(args=types.SimpleNamespace(n_gpu=1), is_fsdp_enabled=True)
    with pytest.raises(UsageError, match="sharded by fsdp"):
        _refuse_many_devices(sharded)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(UsageError, match=r"to 2 GPUs .* start .* with torchrun"):
        trainer_of(model, branches, tmp_path)
