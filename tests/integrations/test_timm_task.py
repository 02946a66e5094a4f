"""`BranchTask` around timm's own tasks, in a loop written against the interface of timm's train.py.

No package ships train.py: `script` makes the calls that train.py of timm 1.0.31 makes, in its order.
"""

import warnings

import pytest
import torch
from adapters import assert_no_hooks, assert_same_bits
from torch import nn

from asymtrain.branches import Falling

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchvision about its image extension
    timm = pytest.importorskip("timm", reason="timm is optional and imports beside few builds of torch")
task_module = pytest.importorskip("timm.task", reason="timm has tasks from 1.0.23 on")

from timm.data import Mixup  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.task import ClassificationTask, FeatureDistillationTask, resume_task_checkpoint  # noqa: E402
from timm.utils import CheckpointSaver, NativeScaler, dispatch_clip_grad  # noqa: E402

from asymtrain.integrations.timm import BranchTask  # noqa: E402

CLASSES, STEPS = 4, 6
SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}


def build():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SIZES)


def plain_task(model=None):
    return ClassificationTask(model or build(), nn.CrossEntropyLoss(), verbose=False)


def branch_task(model=None, **options):
    return BranchTask(plain_task(model), sample=torch.zeros(2, 3, 16, 16), classes=CLASSES, **options)


def images(step):
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, 16, 16, generator=drawn), torch.randint(0, CLASSES, (8,), generator=drawn)


def script(
    task, *, steps=range(STEPS), accumulate=1, clip=None, mixup=None, folder=None, resume=None, **optimizer_args
):
    """What train.py does with a task; it gives the optimizer back."""
    optimizer = create_optimizer_v2(
        task.get_trainable_module(), opt="adamw", lr=0.01, weight_decay=0.1, **optimizer_args
    )
    if resume:
        resume_task_checkpoint(task, resume, optimizer, log_info=False)
    task.setup_ema(decay=0.5)
    for step in steps:
        x, y = images(step)
        if mixup is not None:
            x, y = mixup(x, y)
        loss = task(x, target=y)["loss"]
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            if clip is not None:
                dispatch_clip_grad(task.get_clip_parameters(exclude_head="agc" in clip), 0.1, mode=clip)
            optimizer.step()
            optimizer.zero_grad()
            task.update_ema()
        if isinstance(task, BranchTask):
            task.branches.step((step + 1) / STEPS)
    return optimizer


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"clip": "norm"}, {"clip": "agc"}], ids=str)
def test_strength_0_is_the_task_alone(settings):
    plain, task = plain_task(), branch_task(strength=0)
    script(plain, **settings)
    task.strip(script(task, **settings))
    assert_same_bits(task.get_eval_model(), plain.get_eval_model())
    assert_same_bits(task.get_eval_model(ema=True), plain.get_eval_model(ema=True))


@pytest.mark.parametrize("mixed", [False, True])
def test_it_trains_what_a_loop_by_hand_trains(mixed):
    from asymtrain import attach

    def mixup():
        torch.manual_seed(1)
        import numpy as np

        np.random.seed(1)
        return Mixup(mixup_alpha=1.0, num_classes=CLASSES) if mixed else None

    task, alone = branch_task(strength=Falling(2.0)), build()
    optimizer = script(task, mixup=mixup())
    branches = attach(alone, torch.zeros(2, 3, 16, 16), CLASSES, strength=Falling(2.0))
    values = [*alone.named_parameters(), *branches.named_parameters()]
    decays = [value for name, value in values if value.ndim > 1 and name not in alone.no_weight_decay()]
    known = {id(value) for value in decays}
    others = [value for _, value in values if id(value) not in known]
    groups = [{"params": others, "weight_decay": 0.0}, {"params": decays, "weight_decay": 0.1}]
    by_hand, mix = torch.optim.AdamW(groups, lr=0.01), mixup()
    for step in range(STEPS):
        x, y = images(step)
        x, y = (x, y) if mix is None else mix(x, y)
        (nn.functional.cross_entropy(alone(x), y) + branches.loss(y)).backward()
        by_hand.step()
        by_hand.zero_grad()
        branches.step((step + 1) / STEPS)
    keys = build().state_dict().keys()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(task.get_eval_model().state_dict()[name], value, atol=1e-6, rtol=1e-5)
    assert list(task.criterion.parts)[:2] == ["main_loss", "auxiliary_loss"]
    task.strip(optimizer)
    model = task.get_eval_model()
    assert model.state_dict().keys() == keys == task.get_eval_model(ema=True).module.state_dict().keys()
    assert set(optimizer.state) == set(model.parameters())
    assert task.get_trainable_module() is model
    assert "auxiliary_loss" not in task(*images(0))
    assert_no_hooks(task)


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path):
    whole, task, resumed = (branch_task(strength=Falling(2.0)) for _ in range(3))
    whole.strip(script(whole))
    optimizer = script(task, steps=range(3))
    saver = CheckpointSaver(task.get_eval_model(), task=task, optimizer=optimizer, checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(0)
    saved = torch.load(tmp_path / "last.pth.tar", weights_only=False)
    build().load_state_dict(saved["state_dict"], strict=True)
    build().load_state_dict(saved["state_dict_ema"], strict=True)
    with torch.no_grad():
        for value in resumed.parameters():
            value.zero_()
    resumed.branches.step(3 / STEPS)
    resumed.strip(script(resumed, steps=range(3, STEPS), resume=str(tmp_path / "last.pth.tar")))
    assert_same_bits(resumed.get_eval_model(), whole.get_eval_model())


def test_layer_decay_and_the_clipping_of_all_but_the_head():
    task, plain = branch_task(), plain_task()
    optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    scales = {id(value): group["lr_scale"] for group in optimizer.param_groups for value in group["params"]}
    model = task.get_eval_model()
    assert scales[id(task.branches.head(task.branches.layers[0]).live)] == scales[id(model.head.weight)] == 1.0
    assert scales[id(model.blocks[0].mlp.fc1.weight)] < 1.0
    clipped = [value.shape for value in task.get_clip_parameters(exclude_head=True)]
    assert clipped == [value.shape for value in plain.get_clip_parameters(exclude_head=True)]
    undecayed = {id(v) for group in optimizer.param_groups if not group["weight_decay"] for v in group["params"]}
    assert id(model.pos_embed) in undecayed


def test_around_a_task_of_distillation():
    """The student's parts are called one by one: branches are on the task's trainable module."""
    teacher = build()
    inner = FeatureDistillationTask(build(), teacher, distill_loss_weight=1.0, verbose=False)
    task = BranchTask(inner, sample=torch.zeros(2, 3, 16, 16), classes=CLASSES)
    assert task.branches.layers == ("student.blocks.0", "student.blocks.1")
    result = task(*images(0))
    assert result.keys() == {"loss", "output", "task_loss", "kd_loss", "auxiliary_loss"}
    parts = result["task_loss"] + result["kd_loss"] + result["auxiliary_loss"]
    torch.testing.assert_close(result["loss"], parts)
    task.strip(script(task))
    assert task.get_eval_model().state_dict().keys() == build().state_dict().keys()
    assert_no_hooks(inner)


def test_its_evaluation_is_that_of_the_inner_task():
    inner = task_module.MultiLabelClassificationTask(build(), nn.BCEWithLogitsLoss(), verbose=False)
    task = BranchTask(inner, sample=torch.zeros(2, 3, 16, 16), classes=CLASSES)
    assert type(task.create_evaluator()) is type(inner.create_evaluator())
    x, y = images(0)
    task(x, nn.functional.one_hot(y, CLASSES).float())["loss"].backward()
    task.strip()


def test_a_scaled_loss_trains_what_an_unscaled_one_trains():
    trained = []
    for scaler in (None, NativeScaler("cpu")):
        task = branch_task()
        optimizer = create_optimizer_v2(task.get_trainable_module(), opt="sgd", lr=0.1)
        for step in range(3):
            loss = task(*images(step))["loss"]
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler(loss, optimizer)
            optimizer.zero_grad()
        task.strip(optimizer)
        trained.append(task.get_eval_model())
    assert_same_bits(*trained)
