"""`add_branches` on the SFTTrainer of TRL, whose loss is its own: the model gives it no logits."""

import pytest
import torch
from adapters import assert_no_hooks, assert_same_bits, seeded

pytest.importorskip("datasets", reason="TRL needs datasets")
pytest.importorskip("trl", reason="TRL is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from accelerate.state import AcceleratorState  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from asymtrain import attach  # noqa: E402
from asymtrain.integrations.transformers import add_branches  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL about itself
WORDS = 32


@pytest.fixture(autouse=True)
def _own_precision(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    AcceleratorState._reset_state(reset_partial_state=True)


def model():
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32, **sizes)
    return transformers.LlamaForCausalLM(config)


def trainer_of(net, folder, accumulate=1, **options):
    drawn = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, WORDS, (length,), generator=drawn).tolist() for length in (4, 9, 6, 12) * 4]
    sizes = {"max_steps": 3, "per_device_train_batch_size": 8 // accumulate, "lr_scheduler_type": "constant"} | options
    args = SFTConfig(str(folder), report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
                     logging_steps=1, bf16=False, learning_rate=0.01,
                     gradient_accumulation_steps=accumulate, gradient_checkpointing=False, **sizes)  # fmt: skip
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens(), eos_token="1", pad_token="0")
    return SFTTrainer(net, args, train_dataset=Dataset.from_dict({"input_ids": rows}), processing_class=tokenizer)


def tokens():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))


def test_strength_0_is_the_trainer_alone_and_more_of_it_trains_otherwise(tmp_path):
    trained = []
    for strength in (None, 0, 1.0):
        net = seeded(model)
        trainer = trainer_of(net, tmp_path)
        if strength is not None:
            added = add_branches(trainer, classes=WORDS, preset="early_exit", at="model.layers.0", strength=strength)
        trainer.train()
        trained.append(net)
    assert_same_bits(trained[0], trained[1])
    assert not torch.equal(trained[0].lm_head.weight, trained[2].lm_head.weight)
    row = next(row for row in trainer.state.log_history if "main_loss" in row)
    assert row["loss"] == pytest.approx(row["main_loss"] + row["auxiliary_loss"], rel=1e-3)
    assert added.branches.stripped
    assert_no_hooks(trained[2])


def test_a_step_is_that_of_a_loop_by_hand(tmp_path):
    net, alone = seeded(model), seeded(model)
    options = {"classes": WORDS, "preset": "early_exit", "strength": 2.0}
    trainer = trainer_of(net, tmp_path, per_device_train_batch_size=16, max_steps=1, max_grad_norm=0.0)
    trainer.optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    added = add_branches(trainer, **options)
    assert added.branches.layers == ("model.layers.0",)
    trainer.train()
    (batch,) = trainer.get_train_dataloader()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["labels"].ne(-100).long()}
    branches, optimizer = attach(alone, inputs, **options), torch.optim.SGD(alone.parameters(), lr=1.0)
    (alone(**inputs, labels=batch["labels"]).loss + branches.loss(batch["labels"])).backward()
    optimizer.step()
    branches.strip(optimizer)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, msg=name)


def test_accumulation_changes_nothing(tmp_path):
    nets = []
    for accumulate in (1, 4):
        net = seeded(model)
        trainer = trainer_of(net, tmp_path, accumulate, max_grad_norm=0.0)
        add_branches(trainer, classes=WORDS, pool="none", objective="softmax", cosine=False)
        trainer.train()
        nets.append(net)
    for name, value in nets[0].state_dict().items():
        torch.testing.assert_close(nets[1].state_dict()[name], value, atol=2e-3, rtol=1e-2)
