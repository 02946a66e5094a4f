"""The models of the study: they have the sizes of the protocol, and the engine trains them at layers that it finds."""

import dataclasses

import pytest
import torch

from asymtrain import attach
from asymtrain.lab.engine import train
from asymtrain.lab.sources import build_model
from asymtrain.lab.studies.practice.protocol import (
    MODELS,
    NETWORKS,
    NONE,
    QUICK,
    Task,
    arm_of,
    at_alpha,
    final_specs,
)

PUBLISHED = {"vit_lite": 3_740_004, "small_vit": 2_709_796}  # 3.717 M with ten classes, as reported; 2.8 M with 200
SIZES = {"resnet18": 11.2, "plain18": 2.8, "convnext": 3.4, "vit_tiny": 5.4, "swin": 6.9, "mixer": 4.4}  # millions
FEW = {"classes": 4, "size": 8, "test_size": 4}


@pytest.mark.slow  # and skipped without timm
@pytest.mark.parametrize("name", SIZES)
def test_a_model_of_timm_has_its_size_and_trains(name):
    pytest.importorskip("timm")
    model = MODELS[name]
    built = build_model(model.arch, model.options, classes=100, input_shape=(3, 32, 32), seed=0)
    assert round(sum(value.numel() for value in built.parameters()) / 1e6, 1) == SIZES[name]
    arms = [NONE, arm_of("softmax", at_alpha("softmax", 0.1), layers="later")]
    specs = [
        dataclasses.replace(final_specs(QUICK, Task(name), [arm])[0], batch=4, epochs=1, dataset_options=FEW)
        for arm in arms
    ]
    plain, branched = train(specs, device="cpu")
    assert plain.outcome == branched.outcome == "finished"
    assert plain.history[0].auxiliary_loss is None
    assert branched.history[0].auxiliary_loss > 0


def built(name, classes=100, **options):
    return build_model(NETWORKS[name].arch, options, classes=classes, input_shape=(3, 32, 32), seed=0)


def count(model):
    return sum(value.numel() for value in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_of_a_published_table_has_its_size_and_blocks(name):
    assert count(built(name)) == PUBLISHED[name]
    if name == "vit_lite":
        assert count(built(name, classes=10)) == 3_716_874
    branches = attach(built(name), torch.zeros(2, 3, 32, 32), 100)
    assert len(branches.heads) == 6
    assert all(path.startswith("blocks") for path in branches.heads)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_drops_what_a_block_adds_image_by_image_and_only_in_training(name):
    model = built(name, depth=2, width=16, heads=2, drop_path_rate=0.5)
    tokens = torch.randn(400, 5, 16)
    block = model.blocks[-1]
    assert [part.drop_path for part in model.blocks] == ([0.0, 0.5] if name == "vit_lite" else [0.5, 0.5])
    kept = block.dropped(tokens).flatten(1)
    whole = (kept == 2 * tokens.flatten(1)).all(1)
    assert ((kept == 0).all(1) | whole).all()
    assert 0.4 < whole.float().mean() < 0.6
    block.eval()
    assert torch.equal(block.dropped(tokens), tokens)
    added = block.attended(block.norm1(tokens))
    middle = block.norm2(tokens + added)
    outer = middle if name == "vit_lite" else tokens + added  # Compact Transformers add to normalised tokens
    expected = outer + block.narrow(torch.nn.functional.gelu(block.wide(middle)))
    assert torch.allclose(block(tokens), expected)


def test_stored_specs_find_the_models_under_their_first_name():
    from asymtrain.lab.functions import import_function
    from asymtrain.lab.studies.practice import models

    assert import_function("asymtrain.lab.practice.models:mixer") is models.mixer


def test_a_command_finds_them_without_their_names_among_its_words():
    from asymtrain.errors import UsageError
    from asymtrain.lab.functions import import_function, only_typed
    from asymtrain.lab.studies.practice import models

    with only_typed(["practice", "run", "mixer"]):
        assert import_function("asymtrain.lab.practice.models:mixer") is models.mixer
        with pytest.raises(UsageError, match="named by a stored file alone"):
            import_function("asymtrain.lab.studies.practice.analysis:mixer")
