"""The models of the study: they have the sizes of the protocol, and the engine trains them at layers that it finds."""

import dataclasses

import pytest

from asymtrain.lab.engine import train
from asymtrain.lab.sources import build_model
from asymtrain.lab.studies.practice.protocol import MODELS, NONE, QUICK, Task, arm_of, at_alpha, final_specs

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
