"""Branches in the Trainer of transformers: training as by hand, checkpoints of the bare model, nothing left."""

import types

import pytest
import torch
import torch.nn.functional as F
from adapters import (
    BATCH,
    CLASSES,
    LAYERS,
    Net,
    assert_no_hooks,
    assert_same_bits,
    by_hand,
    examples,
    run_ranks,
    seeded,
)
from torch.utils.data import IterableDataset

from asymtrain import UsageError
from asymtrain.branches import Dense, Falling, GradientRatio
from asymtrain.errors import UsageWarning

pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from accelerate.state import AcceleratorState  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from asymtrain.integrations.transformers import FILE, _refuse, add_branches  # noqa: E402


@pytest.fixture(autouse=True)
def _own_precision(monkeypatch):
    """The precision of one trainer stays in the process, in the environment and in accelerate's state."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    AcceleratorState._reset_state(reset_partial_state=True)


class Counting(Net):
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


class Ignoring(Averaged):
    """Accepts the trainer's count and ignores it, as BERT for sequences does: the trainer adds up means."""

    def forward(self, x, labels=None, **kwargs):
        return super().forward(x, labels)


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


def trainer_of(model, folder, options=None, **more):
    """A trainer with branches, and what `add_branches` gave."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, arguments(folder, **(options or {})), train_dataset=InOrder(),
                      optimizers=(optimizer, None))  # fmt: skip
    return trainer, add_branches(trainer, **{"at": "blocks.*", "classes": CLASSES, **more})


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize("kind", [Counting, pytest.param(Averaged, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"bf16": True}], ids=str)
def test_it_trains_what_a_loop_by_hand_trains(settings, kind, tmp_path):
    accumulate = settings.get("accumulate", 1)
    options = {"gradient_accumulation_steps": accumulate, "max_steps": 12 // accumulate,
               "bf16": settings.get("bf16", False)}  # fmt: skip
    model, alone = seeded(kind), seeded(Net)
    trainer, added = trainer_of(model, tmp_path, options)
    trainer.train()
    wanted = by_hand(alone, **settings)
    assert_same_bits(model, alone)
    assert_same_bits(added.branches, wanted)
    assert added.branches.stripped
    assert set(trainer.optimizer.state) == set(model.parameters())
    Net().load_state_dict(model.state_dict(), strict=True)
    assert_no_hooks(model)


def test_its_own_optimizer_has_the_branches_too(tmp_path):
    model, sizes = seeded(Counting), []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            sizes.append(sum(len(group["params"]) for group in optimizer.param_groups))

    trainer = Trainer(model, arguments(tmp_path, max_steps=2), train_dataset=InOrder(), callbacks=[Look()])
    added = add_branches(trainer, at="blocks.*", classes=CLASSES)
    own, before = len(list(model.parameters())), added.branches.head("blocks.0").live.clone()
    trainer.train()
    assert sizes == 2 * [own + len(list(added.branches.parameters()))]
    assert not torch.equal(added.branches.head("blocks.0").live, before)


def test_what_is_logged_and_that_measuring_changes_nothing(tmp_path):
    model, silent = seeded(Counting), seeded(Counting)
    trainer, _ = trainer_of(model, tmp_path, {"max_steps": 4, "logging_steps": 1})
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 4
    for row in rows:
        assert row["loss"] == pytest.approx(row["main_loss"] + row["auxiliary_loss"], abs=1e-4)
        by_layer = [row[f"auxiliary_loss/{layer}"] for layer in LAYERS]
        assert row["auxiliary_loss"] == pytest.approx(0.5 * sum(by_layer) / 2)
        assert -1 <= row["gradient_cosine"] <= 1
    other, _ = trainer_of(silent, tmp_path, {"max_steps": 4, "logging_steps": 3}, cosine=False)
    other.train()
    logged = [row for row in other.state.log_history if "main_loss" in row]
    assert [row["step"] for row in logged] == [3]
    assert "gradient_cosine" not in logged[0]
    assert_same_bits(silent, model)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"logging_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2}, [6, 12]),
        ({"logging_steps": 3, "logging_first_step": True, "max_steps": 4}, [1, 3]),
        ({"logging_strategy": "no", "max_steps": 2}, []),
    ],
    ids=["each epoch", "the first step", "never"],
)
def test_it_logs_when_the_trainer_does(options, steps, tmp_path):
    rows = [{"x": x, "labels": y} for x, y in zip(*examples(), strict=True)]
    trainer = Trainer(seeded(Counting), arguments(tmp_path, **options), train_dataset=rows)
    add_branches(trainer, at="blocks.*", classes=CLASSES)
    trainer.train()
    assert [row["step"] for row in trainer.state.log_history if "gradient_cosine" in row] == steps
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == steps


def test_losses_in_the_log_and_the_gradient_ratio_do_not_depend_on_accumulation(tmp_path):
    """Of equal rows, so that the last batch of a step has the mean of the whole step."""
    x, y = examples(1)

    class Equal(IterableDataset):
        def __iter__(self):
            while True:
                yield {"x": x[0], "labels": y[0]}

    found = []
    for accumulate in (1, 4):
        args = arguments(tmp_path, max_steps=2, gradient_accumulation_steps=accumulate, logging_steps=1,
                         per_device_train_batch_size=BATCH // accumulate)  # fmt: skip
        trainer = Trainer(seeded(Counting), args, train_dataset=Equal())
        added = add_branches(trainer, at="blocks.*", classes=CLASSES, strength=GradientRatio(0.1, every=1))
        trainer.train()
        row = next(row for row in trainer.state.log_history if row["step"] == 2)
        assert row["loss"] == pytest.approx(row["main_loss"] + row["auxiliary_loss"], abs=1e-4)
        found.append((row["main_loss"], row["auxiliary_loss"], added.branches.strength))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][2] > 0


SAVING = {"save_strategy": "steps", "save_steps": 4, "ignore_data_skip": False}


def test_checkpoints_are_the_model_s_and_resume_with_the_branches(tmp_path):
    whole, resumed = seeded(Counting), seeded(Counting, seed=5)
    trainer, added = trainer_of(whole, tmp_path, SAVING, strength=Falling(2.0))
    trainer.train()
    folder = tmp_path / "checkpoint-8"
    bare = Counting()
    bare.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    assert (folder / FILE).exists()
    trainer, again = trainer_of(resumed, tmp_path, SAVING, strength=Falling(2.0))
    trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.global_step == 12
    assert_same_bits(resumed, whole)
    assert_same_bits(again.branches, added.branches)


class Interrupt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 6:
            raise KeyboardInterrupt


def test_an_interrupted_training_resumes_in_the_same_process(tmp_path):
    whole, model = seeded(Counting), seeded(Counting)
    trainer_of(whole, tmp_path / "whole", SAVING)[0].train()
    trainer, added = trainer_of(model, tmp_path, SAVING)
    trainer.add_callback(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert_no_hooks(model)
    assert set(trainer.optimizer.state) == set(model.parameters())
    trainer.remove_callback(Interrupt)
    with pytest.warns(UsageWarning, match="stripped: attached anew"):
        trainer.train(resume_from_checkpoint=True)
    assert_same_bits(model, whole)
    assert added.branches.stripped
    assert_no_hooks(model)


def test_the_optimizer_in_a_checkpoint_is_that_of_training_without_branches(tmp_path):
    """So a checkpoint goes on without branches, and one of training without them goes on with new ones."""
    saving = {**SAVING, "max_steps": 8}

    def plain(model, folder):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return Trainer(model, arguments(folder, **saving), train_dataset=InOrder(), optimizers=(optimizer, None))

    trainer_of(seeded(Counting), tmp_path / "with", saving)[0].train()
    plain(seeded(Counting), tmp_path / "without").train()
    first, second = (torch.load(tmp_path / kind / "checkpoint-4" / "optimizer.pt") for kind in ("with", "without"))
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    alone = plain(seeded(Counting, seed=5), tmp_path / "with")
    alone.train(resume_from_checkpoint=str(tmp_path / "with" / "checkpoint-4"))
    assert alone.state.global_step == 8
    trainer, added = trainer_of(seeded(Counting, seed=5), tmp_path, saving)
    before = added.branches.head("blocks.0").live.clone()
    with pytest.warns(UsageWarning, match=rf"without.checkpoint-4 has no {FILE}: the branches are new ones"):
        trainer.train(str(tmp_path / "without" / "checkpoint-4"))
    assert not torch.equal(added.branches.head("blocks.0").live, before)
    trainer, _ = trainer_of(seeded(Counting), tmp_path, at="blocks.0")
    with pytest.raises(UsageError, match=r"branches in the checkpoint are not like those .*: attach with the layers"):
        trainer.train(str(tmp_path / "with" / "checkpoint-4"))


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


CAUSAL = {"at": "transformer.h.*", "classes": 20, "layout": "BTD", "pool": "none"}
SENTENCES = {"at": "bert.encoder.layer.*", "classes": 4, "pool": "class_token"}


def summed_loss(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten(), reduction="sum") / num_items_in_batch


@pytest.mark.parametrize(
    ("build", "options", "labels", "more"),
    [
        (causal_model, CAUSAL, "tokens", {}),
        (classifier, SENTENCES, "sentences", {}),
        (classifier, SENTENCES, "sentences", {"compute_loss_func": summed_loss}),
        (classifier, SENTENCES, "sentences", {"label_smoothing_factor": 0.1}),
    ],
    ids=["causal", "classifier", "loss function", "label smoothing"],
)
def test_strength_0_is_the_trainer_alone(build, options, labels, more, tmp_path):
    """Accumulated, padded, clipped, with dropout: the same bits, losses and gradient norms."""
    args = {"max_steps": 3, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2, "max_grad_norm": 0.1,
            "logging_steps": 1, "weight_decay": 0.1, "learning_rate": 0.01}  # fmt: skip
    args |= {name: value for name, value in more.items() if "factor" in name}
    theirs = {name: value for name, value in more.items() if name not in args}
    plain, model = seeded(build), seeded(build)
    trainers = []
    for one in (plain, model):  # each sets the random state, which dropout then reads
        trainer = Trainer(one, arguments(tmp_path, **args), train_dataset=sentences(24, labels), **theirs)
        if one is model:
            add_branches(trainer, strength=0, **options)
        trainer.train()
        trainers.append(trainer)
    alone, trainer = trainers
    assert_same_bits(model, plain)
    rows, expected = ([row for row in one.state.log_history if "loss" in row] for one in (trainer, alone))
    assert len(rows) == 3
    assert [[row["loss"], row["grad_norm"]] for row in rows] == [[row["loss"], row["grad_norm"]] for row in expected]


def without_dropout(model):
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def moved_by_one_step(kind, strength, accumulate, folder):
    """What one step of gradient descent adds to the weights."""
    builds = {"bert": classifier, "gpt2": causal_model}
    model = without_dropout(seeded(builds.get(kind, kind)))
    options = {"bert": SENTENCES, "gpt2": CAUSAL}.get(kind, {"at": "blocks.*", "classes": CLASSES})
    rows = sentences(BATCH, {"bert": "row", "gpt2": "tokens"}[kind]) if kind in builds else InOrder()
    start = torch.cat([value.detach().flatten() for value in model.parameters()])
    args = arguments(folder, max_steps=1, gradient_accumulation_steps=accumulate,
                     per_device_train_batch_size=BATCH // accumulate)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, args, train_dataset=rows, optimizers=(optimizer, None))
    add_branches(trainer, strength=strength, **options)
    trainer.train()
    return torch.cat([value.detach().flatten() for value in model.parameters()]) - start


@pytest.mark.parametrize("kind", ["bert", "gpt2", Counting, Averaged, Ignoring])
def test_the_gradients_keep_their_ratio_at_any_accumulation(kind, tmp_path):
    """The same rows in 1, 2 and 4 batches: the auxiliary gradient is always the same share of the main one."""
    ratios = []
    for accumulate in (1, 2, 4):
        plain, both = (moved_by_one_step(kind, strength, accumulate, tmp_path) for strength in (0.0, 1.0))
        ratios.append(float((both - plain).norm() / plain.norm()))
    assert ratios == pytest.approx(3 * ratios[:1], rel=1e-3)
    assert ratios[0] > 0.01


def test_a_second_training_attaches_again_and_says_so(tmp_path):
    model = seeded(Counting)
    trainer, added = trainer_of(model, tmp_path, {"max_steps": 2, "logging_steps": 1})
    trainer.train()
    first = added.branches
    with pytest.warns(UsageWarning, match="stripped: attached anew"):
        trainer.train()
    assert added.branches is not first
    assert added.branches.stripped
    assert set(trainer.optimizer.state) == set(model.parameters())
    assert len([row for row in trainer.state.log_history if "auxiliary_loss" in row]) == 2
    assert_no_hooks(model)


RANKS = """
import os

import torch
from test_transformers_trainer import CAUSAL, Trainer, add_branches, arguments, causal_model, seeded, sentences
from test_transformers_trainer import without_dropout

torch.set_num_threads(1)


class InTurn(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


ranks = int(os.environ["WORLD_SIZE"])
model = without_dropout(seeded(causal_model))
args = arguments("out", max_steps=2, gradient_accumulation_steps=2, logging_steps=1, logging_strategy="steps",
                 per_device_train_batch_size=4 // ranks, ddp_backend="gloo")
trainer = InTurn(model, args, train_dataset=sentences(16, "tokens"),
                 optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None))
added = add_branches(trainer, strength=2.0, **CAUSAL)
trainer.train()
torch.save((model.state_dict(), added.branches.state_dict()), f"{ranks}.{trainer.args.process_index}.pt")
"""


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(tmp_path):
    """Sentences of different lengths on each rank; the mean is over the tokens of both."""
    for ranks in (1, 2):
        run_ranks(RANKS, tmp_path, ranks)
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1.0", "2.0", "2.1"))
    for whole, *parts in zip(one, first, second, strict=True):
        assert all(torch.allclose(value, part[name], atol=1e-5) for name, value in whole.items() for part in parts)
    assert all(torch.equal(value, second[1][name]) for name, value in first[1].items())


def test_a_targets_function_may_take_its_entry_out_of_the_inputs(tmp_path):
    class Named(InOrder):
        def __iter__(self):
            for row in super().__iter__():
                yield {**row, "other": row["labels"]}

    args = arguments(tmp_path, max_steps=2, remove_unused_columns=False, gradient_accumulation_steps=2)
    model = seeded(Averaged)
    trainer = Trainer(model, args, train_dataset=Named())
    sample = {"x": examples()[0][:2]}
    added = add_branches(trainer, sample=sample, at="blocks.*", classes=CLASSES, targets=lambda row: row.pop("other"))
    trainer.train()
    assert added.branches.stripped


class Look(TrainerCallback):
    """Predicts after each step, and evaluates."""

    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.predict([{"x": x, "labels": y} for x, y in zip(*examples(1), strict=True)])


def test_predictions_between_the_steps_change_nothing(tmp_path):
    model, alone = seeded(Counting), seeded(Counting)
    settings = {"gradient_accumulation_steps": 2, "max_steps": 4}
    trainer, _ = trainer_of(model, tmp_path, settings)
    look = Look()
    look.trainer = trainer
    trainer.add_callback(look)
    trainer.train()
    trainer_of(alone, tmp_path, settings)[0].train()
    assert_same_bits(model, alone)


def test_gradient_checkpointing_trains_the_same(tmp_path):
    nets = []
    for checkpointing in (False, True):
        model = without_dropout(seeded(causal_model))
        args = arguments(tmp_path, max_steps=3, gradient_checkpointing=checkpointing)
        trainer = Trainer(model, args, train_dataset=sentences(64, "tokens"))
        add_branches(trainer, **CAUSAL)
        trainer.train()
        nets.append(model)
    assert_same_bits(*nets)


def test_torch_compile_trains_the_same_and_compiles_once(tmp_path):
    compiled, eager = seeded(Counting), seeded(Counting)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    trainer_of(compiled, tmp_path, {"torch_compile": True, "torch_compile_backend": "eager"})[0].train()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    trainer_of(eager, tmp_path)[0].train()
    assert_same_bits(compiled, eager)
    assert_no_hooks(compiled)


def test_evaluation_has_the_model_s_loss_alone(tmp_path):
    model = seeded(Counting)
    rows = [{"x": x, "labels": y} for x, y in zip(*examples(2), strict=True)]
    args = arguments(tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=2 * BATCH)
    trainer = Trainer(model, args, train_dataset=InOrder(), eval_dataset=rows)
    add_branches(trainer, at="blocks.*", classes=CLASSES, strength=100.0)
    trainer.train()
    found = next(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    x, y = examples(2)
    assert found == pytest.approx(F.cross_entropy(model(x)["logits"], y).item(), rel=1e-5)


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="give either classes="):
        trainer_of(seeded(Counting), tmp_path, classes=None)
    with pytest.raises(UsageError, match="shift moves the targets of tokens"):
        trainer_of(seeded(Counting), tmp_path, pool=Dense(), shift=1)
    twice = trainer_of(seeded(Counting), tmp_path)[0]
    with pytest.raises(UsageError, match=r"takes the trainer, got a Linear: add_branches\(trainer"):
        add_branches(torch.nn.Linear(2, 2), classes=2)
    with pytest.raises(UsageError, match="has branches already: make a new Trainer"):
        add_branches(twice, at="blocks.*", classes=CLASSES)
    with pytest.raises(UsageError, match="with model_init= the trainer trains another model"):
        add_branches(Trainer(model_init=Counting, args=arguments(tmp_path), train_dataset=InOrder()), classes=CLASSES)
    rows = [{"x": x} for x in examples()[0]]
    listed = Trainer(Counting(), arguments(tmp_path), train_dataset=rows, data_collator=list)
    with pytest.raises(UsageError, match="a batch of Trainer is a list, which is not what the model is called with"):
        add_branches(listed, classes=CLASSES)
    nothing = types.SimpleNamespace(callbacks=[])
    sharded = types.SimpleNamespace(
        args=types.SimpleNamespace(n_gpu=1), is_fsdp_enabled=True, model_init=None, callback_handler=nothing
    )
    with pytest.raises(UsageError, match="sharded by fsdp"):
        _refuse(sharded)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(UsageError, match=r"to 2 GPUs .* start .* with torchrun"):
        trainer_of(seeded(Counting), tmp_path)
