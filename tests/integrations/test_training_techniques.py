"""What a loop of one's own combines branches with: LoRA, mixed precision, accumulation, checkpointing, resuming."""

import copy

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, CLASSES, Net, assert_no_hooks, assert_same_bits, examples, seeded
from torch import nn
from torch.utils.checkpoint import checkpoint

from asymtrain import attach
from asymtrain.branches import Parallel

STRENGTH = 1.0


class Adapted(nn.Module):
    """A frozen linear layer and a trained one of low rank beside it (LoRA)."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Checkpointed(Net):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def branches_on(model):
    head = Parallel(2, activation="all")
    return attach(model, examples()[0][:2], CLASSES, at="blocks.*", head=head, strength=STRENGTH)


def optimizer_of(model, branches):
    trained = [value for value in [*model.parameters(), *branches.parameters()] if value.requires_grad]
    return torch.optim.AdamW(trained, lr=0.01)


def train(model, branches, optimizer, batches, *, accumulate=1, scaler=None):
    scaler = torch.amp.GradScaler("cpu", enabled=False) if scaler is None else scaler
    for index, (x, y) in enumerate(batches):
        with torch.autocast("cpu", torch.bfloat16, enabled=scaler.is_enabled()):
            loss = F.cross_entropy(model(x), y) + branches.loss(y)
        scaler.scale(loss / accumulate).backward()
        if (index + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def batches():
    x, y = examples()
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def test_lora_trains_its_layers_and_the_branches_and_nothing_else():
    model = seeded(Net)
    for block in model.blocks:
        block[0] = Adapted(block[0])
    model.head.requires_grad_(False)
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    keys = list(model.state_dict())
    branches = branches_on(model)
    initial = {name: value.clone() for name, value in branches.named_parameters()}
    optimizer = optimizer_of(model, branches)
    train(model, branches, optimizer, batches())
    branches.strip(optimizer)
    values = dict(model.named_parameters())
    assert all(torch.equal(values[name], value) for name, value in frozen.items())
    assert len(frozen) == 6
    assert all(block[0].up.weight.abs().max() > 0 for block in model.blocks)
    assert not any(torch.equal(value, initial[name]) for name, value in branches.named_parameters())
    assert set(optimizer.state) == {value for value in model.parameters() if value.requires_grad}
    assert list(model.state_dict()) == keys
    assert_no_hooks(model)


def test_checkpointed_and_accumulated_training_is_the_plain_one():
    """The recomputation in backward changes no bit."""
    plain, model = seeded(Net), seeded(Checkpointed)
    trained = []
    for one in (plain, model):
        branches = branches_on(one)
        train(one, branches, optimizer_of(one, branches), batches(), accumulate=2)
        trained.append(branches)
    assert_same_bits(model, plain)
    assert_same_bits(*trained)


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize("kind", [Net, Checkpointed])
def test_a_scaled_loss_in_mixed_precision_trains_what_an_unscaled_one_trains(kind):
    """A power of two: gradients are divided by it to the same bits."""
    trained = []
    for scale in (1.0, 1024.0):
        model = seeded(kind)
        branches = branches_on(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        train(model, branches, optimizer_of(model, branches), batches(), accumulate=2, scaler=scaler)
        trained.append((model, branches))
    for first, second in zip(*trained, strict=True):
        assert_same_bits(first, second)
    assert all(value.dtype == torch.float32 for value in trained[0][1].parameters())


def test_an_overflow_skips_the_step_of_model_and_branches():
    model = seeded(Net)
    branches = branches_on(model)
    before = copy.deepcopy(model), copy.deepcopy(branches)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    x, y = batches()[0]
    optimizer = optimizer_of(model, branches)
    loss = F.cross_entropy(model(x), y) + 100 * branches.loss(y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    assert_same_bits(model, before[0])
    for name, value in branches.named_parameters():
        assert torch.equal(value, dict(before[1].named_parameters())[name])


def test_training_resumes_from_three_state_dicts(tmp_path):
    whole = seeded(Net)
    branches = branches_on(whole)
    optimizer = optimizer_of(whole, branches)
    train(whole, branches, optimizer, batches()[:3])
    torch.save([part.state_dict() for part in (whole, branches, optimizer)], tmp_path / "half.pt")
    train(whole, branches, optimizer, batches()[3:])

    resumed = seeded(Net, seed=5)
    added = branches_on(resumed)
    again = optimizer_of(resumed, added)
    for part, state in zip((resumed, added, again), torch.load(tmp_path / "half.pt"), strict=True):
        part.load_state_dict(state)
    train(resumed, added, again, batches()[3:])
    assert_same_bits(resumed, whole)
    assert_same_bits(added, branches)


def test_peft_with_the_trainer_of_hugging_face(tmp_path):
    """LoRA by peft on a vision transformer."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
    from asymtrain.integrations.transformers import add_branches

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=CLASSES, **sizes)
    model = seeded(lambda: transformers.ViTForImageClassification(config))
    queries = [name for name, part in model.named_modules() if name.split(".")[-1] in ("query", "q_proj")]
    lora = peft.LoraConfig(r=2, target_modules=queries, modules_to_save=["classifier"])
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1))

    adapted = peft.get_peft_model(model, lora)
    before = {name: value.detach().clone() for name, value in adapted.named_parameters()}
    rows = [{"pixel_values": image, "labels": index % CLASSES} for index, image in enumerate(images)]
    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=3, report_to=[], use_cpu=True, logging_steps=1,
                                               disable_tqdm=True, save_strategy="no", learning_rate=0.01)  # fmt: skip
    trainer = transformers.Trainer(adapted, arguments, train_dataset=rows)
    added = add_branches(trainer, classes=CLASSES, pool="class_token")
    trainer.train()
    moved = {name for name, value in adapted.named_parameters() if not torch.equal(value, before[name])}
    assert len(added.branches.layers) == 2
    assert moved
    assert moved <= {name for name, value in adapted.named_parameters() if value.requires_grad}
    assert any("lora_" in name for name in moved)
    assert "auxiliary_loss" in trainer.state.log_history[0]
    assert added.branches.stripped
    assert_no_hooks(adapted)
