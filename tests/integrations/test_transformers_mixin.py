"""The mixin for the Trainer of transformers: training as by hand, checkpoints of the bare model, nothing left."""

import types

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, CLASSES, Net, assert_bare, assert_no_hooks, assert_same_bits, by_hand, examples, seeded
from torch.utils.data import IterableDataset

from asymtrain import UsageError, attach

pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from accelerate.state import AcceleratorState  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from asymtrain.integrations.transformers import FILE, BranchesMixin, _refuse_many_devices  # noqa: E402


@pytest.fixture(autouse=True)
def _own_precision(monkeypatch):
    """The precision of one trainer stays in the process, in the environment and in accelerate's state."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    AcceleratorState._reset_state(reset_partial_state=True)


class BranchesTrainer(BranchesMixin, Trainer):
    pass


class Labelled(Net):
    """The network as the Trainer calls it, taking what newer trainers send along, as models of transformers do."""

    def forward(self, x, labels=None, **kwargs):
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
    return attach(model, at="blocks.*", sample=examples()[0][:2], classes=CLASSES, **{"redundancy": 2, **options})


def trainer_of(model, branches, folder, alpha=0.5, options=None, **more):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return BranchesTrainer(model, arguments(folder, **(options or {})), train_dataset=InOrder(), branches=branches,
                           alpha=alpha, optimizers=(optimizer, None), **more)  # fmt: skip


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"bf16": True}, {"alpha": 0.0}], ids=str)
def test_it_trains_what_a_loop_by_hand_trains(settings, tmp_path):
    settings = {"alpha": 0.5, **settings}
    accumulate = settings.get("accumulate", 1)
    options = {"gradient_accumulation_steps": accumulate, "max_steps": 12 // accumulate,
               "bf16": settings.get("bf16", False)}  # fmt: skip
    model = seeded(Labelled)
    branches = branches_on(model)
    trainer = trainer_of(model, branches, tmp_path, settings["alpha"], options)
    trainer.train()
    alone = seeded(Net)
    wanted = by_hand(alone, epochs=2, redundancy=2, **settings)
    assert_same_bits(model, alone)
    assert_same_bits(branches, wanted)
    assert branches.stripped
    assert set(trainer.optimizer.state) == set(model.parameters())
    if settings == {"alpha": 0.5}:
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


def test_what_is_logged(tmp_path):
    model = seeded(Labelled)
    branches = branches_on(model)
    trainer = trainer_of(model, branches, tmp_path, options={"max_steps": 4})
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2
    for row, found in zip(rows, trainer.alignments.seen, strict=True):
        assert row["branch_loss"] == pytest.approx(row["branch_loss/blocks.0"] + row["branch_loss/blocks.1"])
        assert row["gradient_cosine"] == pytest.approx(found.cosine)
    silent = seeded(Labelled)
    other = trainer_of(silent, branches_on(silent), tmp_path, options={"max_steps": 4}, cosine=False)
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
    assert trainer.state.log_history[0]["branch_loss"] == pytest.approx(wanted, rel=1e-5)
    assert_no_hooks(model)
    fresh = transformers.BertForTokenClassification(config)
    fresh.load_state_dict(model.state_dict(), strict=True)


def test_what_is_refused(tmp_path, monkeypatch):
    model, other = seeded(Labelled), seeded(Labelled)
    with pytest.raises(UsageError, match="on no part of this model"):
        trainer_of(model, branches_on(other), tmp_path)
    branches = branches_on(model)
    with pytest.raises(UsageError, match="override compute_loss instead"):
        trainer_of(model, branches, tmp_path, compute_loss_func=lambda *_, **__: 0)
    sharded = types.SimpleNamespace(args=types.SimpleNamespace(n_gpu=1), is_fsdp_enabled=True)
    with pytest.raises(UsageError, match="sharded by fsdp"):
        _refuse_many_devices(sharded)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(UsageError, match=r"to 2 GPUs .* start .* with torchrun"):
        trainer_of(model, branches, tmp_path)
