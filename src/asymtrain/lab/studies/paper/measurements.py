"""The measurements that recipes ask for: attention, landscapes, identities.

Each kind says what it needs from a study and how to measure it; values go into the store under the spec's id.
"""

import base64
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asymtrain.lab.data import Dataset
from asymtrain.lab.instruments.attention.result import AttentionResult, AttentionSettings
from asymtrain.lab.instruments.landscape.result import Landscape, LandscapeSettings, Loss, row_values
from asymtrain.lab.runs import DEFAULTS, RunSpec
from asymtrain.lab.store import Store
from asymtrain.lab.store.provenance import current
from asymtrain.lab.studies.paper.numbers import hyperparameters
from asymtrain.lab.studies.paper.recipe import Measuring
from asymtrain.lab.studies.paper.study import Reading, Scope, asymmetric_spec, over_seeds, plain_spec, table_values
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.timing import PASSES, RULE, SMALL, estimate

# Measuring loads torch, so it is imported there: recipes only say what they need.
if TYPE_CHECKING:
    from asymtrain.lab.engine.states import State

Values = Mapping[int, Any]  # by epoch
Measured = Iterator[list[tuple[Measuring, Values]]]  # values that were measured together are stored together

# Attention, for Table 14 and Figures 4, 7 and 9: of the ViT, Plain and Asymmetric, through training

ATTENTION_EPOCHS = (20, 60, 100)  # of Table 14
BETWEEN = (40, 80)  # more points for the curves of Figure 9
ATTENTION_REDUNDANCY = 20
WHOSE = {"class_token": "of the class token", "mean": "of all queries"}
TOGETHER = 10  # runs that are trained again at a time: as fast as all at once, and within ten minutes on a large GPU
MAP_DIGITS = 5  # of a kept map: more than a figure can show


def attention_epochs(study: Scope) -> tuple[int, ...]:
    return tuple(sorted({*(study.at(epoch) for epoch in (*ATTENTION_EPOCHS, *BETWEEN)), study.epochs}))


def attentions_wanted(study: Scope, reading: Reading, variant: str) -> tuple[Measuring, ...]:
    """One for each seed of a variant: the runs of Table 1 at N = 20. The first keeps maps for the figures.

    The name has the epochs: the same run at other epochs is another measurement.
    """
    settings = AttentionSettings(**{"query": reading.queries, **study.sizes.attention})
    values, what = table_values(study, "vit", ATTENTION_REDUNDANCY), WHOSE[settings.query]
    if variant == "plain":
        spec = plain_spec(study, "vit", "cifar100", values)
    else:
        spec = asymmetric_spec(study, reading, "vit", "cifar100", values, ATTENTION_REDUNDANCY)
        what += f", {reading.title}" if reading.fields else ""
    epochs, measurements = attention_epochs(study), []
    for seeded in over_seeds(study, spec):
        keep = study.sizes.attention_images if seeded.seed == study.seeds[0] else 0
        name = f"{settings.key} epochs={'+'.join(map(str, epochs))}{f' maps={keep}' if keep else ''}"
        measurements.append(Measuring("attention", name, seeded, epochs, settings, keep, what))
    return tuple(measurements)


def measure_attentions(
    measurements: list[Measuring], device: str | None, data_root: Path | None, cache: Path
) -> Measured:
    """Metrics by epoch, and maps if they are kept. Trains runs again to the epochs that the cache lacks.

    A few runs at a time: their measurements are stored before the next ones are trained, so that little is lost when
    time is over.
    """
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.states import states_at
    from asymtrain.lab.instruments.attention.measure import measure_states

    groups: dict[RunSpec, list[Measuring]] = {}
    for attention in sorted(measurements, key=lambda attention: attention.spec.seed):
        groups.setdefault(attention.spec, []).append(attention)
    specs = list(groups)
    for start in range(0, len(specs), TOGETHER):
        chunk = specs[start : start + TOGETHER]
        members = [attention for spec in chunk for attention in groups[spec]]
        epochs = sorted({epoch for attention in members for epoch in attention.epochs})
        states = states_at(chunk, epochs, device=device, data_root=data_root, cache=cache)
        for attention in members:
            dataset = load_for(attention.spec, data_root)
            own = [state for state in states if state.spec == attention.spec and state.epoch in attention.epochs]
            # A diverged run has no state at later epochs, and no values for them.
            results = measure_states(own, dataset, attention.settings, device, keep=attention.keep)
            yield [(attention, {result.epoch or 0: _value(result, dataset, attention.keep) for result in results})]


def _value(result: AttentionResult, dataset: Dataset, keep: int) -> dict[str, Any]:
    value = result.to_dict()
    # Figures and tables use layers and their mean; single heads would be most of the bytes.
    value["scopes"] = {scope: means for scope, means in value["scopes"].items() if ":" not in scope}
    if keep:
        images = list(result.images[:keep])
        value["maps"] = {layer: maps.round(MAP_DIGITS).tolist() for layer, maps in result.maps.items()}
        # Images (3, H, W) as text, so that a figure can be drawn without the data.
        pixels = (np.ascontiguousarray(dataset.test.images[index]).tobytes() for index in images)
        value["pixels"] = [base64.b64encode(flat).decode() for flat in pixels]
        value["labels"] = [dataset.class_names[dataset.test.labels[index]] for index in images]
    return value


def pixels_of(text: str) -> npt.NDArray[np.uint8]:
    flat = np.frombuffer(base64.b64decode(text), np.uint8)
    side = round((len(flat) / 3) ** 0.5)
    return flat.reshape(3, side, side)


# The landscape of Tables 5 and 6: around initial networks, at every redundancy, along the same directions

LANDSCAPE_LEVELS = (0, 1, 20, 300)
CASES = (("mlp", "cifar10"), ("cnn", "cifar100"), ("vit", "cifar100"))
VIEWS = (("all", "variance"), ("all", "norm"))
_OF_TRAINING = ("learning_rate", "weight_decay", "batch", "precision", "test")
LOSSES: tuple[Loss, ...] = ("main", "total")
SURFACE_DIGITS = 7  # of a kept surface: more than a figure can show


def total_alpha(arch: str) -> float:
    """The alpha of the total loss at every redundancy: Table 13's for N = 20, since it has none for N = 300."""
    return hyperparameters(arch, 20).alpha


def landscapes_wanted(
    study: Scope, snapshot: Snapshot, arch: str, dataset: str, loss: Loss = "main"
) -> tuple[Measuring, ...]:
    """One for each seed, on Plain: all redundancies share its weights. The first of a case keeps surfaces for a figure.

    Initial weights do not depend on how they would be trained, so no setting of training is in the spec: studies of
    any length and precision share the measurement.

    A network with a stored float32 surface stays in float32, so that both of its losses have one precision: the CNN's
    were measured in it until 2026-11-18.
    """
    spec = plain_spec(study, arch, dataset, table_values(study, arch, 20))
    spec = dataclasses.replace(spec, epochs=1, **{name: DEFAULTS[name] for name in _OF_TRAINING})
    settings = LandscapeSettings(**{**study.sizes.landscape, **study.sizes.landscape_of.get(arch, {})}, loss=loss)
    full = dataclasses.replace(settings, precision="fp32")
    stored = [_landscape_name(dataclasses.replace(full, loss=either), arch) for either in LOSSES]
    first_seed = study.seeds[0] if (arch, dataset) == CASES[0] and loss == "main" else None
    measurements = []
    for seed in study.seeds:
        network = dataclasses.replace(spec, seed=seed)
        own = full if any(snapshot.values(network, name) is not None for name in stored) else settings
        name, keep = _landscape_name(own, arch), int(seed == first_seed)
        measurements.append(Measuring("landscape", name, network, (0,), own, keep, f"{loss} loss"))
    return tuple(measurements)


def _landscape_name(settings: LandscapeSettings, arch: str) -> str:
    alpha = f" alpha={total_alpha(arch):g}" if settings.loss == "total" else ""
    return f"{settings.key}{alpha} N={'+'.join(map(str, LANDSCAPE_LEVELS))}"


def passes_of(landscapes: Iterable[Measuring]) -> list[list[Measuring]]:
    """Groups that share their forward passes: the losses of one network, along the same directions."""
    passes: dict[tuple[str, LandscapeSettings], list[Measuring]] = {}
    for landscape in landscapes:
        settings = dataclasses.replace(landscape.settings, loss="main")
        passes.setdefault((landscape.spec.id, settings), []).append(landscape)
    return list(passes.values())


def measure_landscapes(
    measurements: list[Measuring], device: str | None, data_root: Path | None, cache: Path
) -> Measured:
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.states import initial_state
    from asymtrain.lab.instruments.landscape.measure import measure_losses

    for together in passes_of(measurements):
        spec, settings = together[0].spec, together[0].settings
        dataset, alpha = load_for(spec, data_root), total_alpha(spec.arch)
        specs = [spec, *(dataclasses.replace(spec, redundancy=level, alpha=alpha) for level in LANDSCAPE_LEVELS[1:])]
        initial = [initial_state(spec, dataset) for spec in specs]
        losses = [landscape.settings.loss for landscape in together]
        results = measure_losses(initial, dataset, settings, losses, device=device)
        yield [
            (landscape, {0: _surfaces(result, landscape.keep)})
            for landscape, result in zip(together, results, strict=True)
        ]


def _surfaces(result: Landscape, keep: int) -> dict[str, Any]:
    rows = [row_values(row) for row in result.rows]
    value: dict[str, Any] = {"rows": rows, "seconds": result.seconds, "device": result.device}
    if keep:
        value["surfaces"] = [
            {"redundancy": level, "scaling": scaling, "losses": losses.round(SURFACE_DIGITS).tolist()}
            for (_, level, directions, scaling), losses in result.surfaces.items()
            if (directions, scaling) in VIEWS
        ]
    return value


SURFACES = 5  # of a draw of directions, for four redundancies, both scalings and the control
# A landscape's forward passes are in float32 or TF32, the rule's rates in bf16. The factors come from the paper's ViT
# (65 s a network in float32) and CNN (38 s in TF32) on an H200 (results/200-epochs-landscapes).
SLOWER = {"cuda": {"fp32": 7, "tf32": 3}, "cpu": {"fp32": 1, "tf32": 1}}


def measurement_seconds(
    measurements: Sequence[Measuring], snapshot: Snapshot, device: str, workers: int, small: bool
) -> float:
    """Wall time of measurements: states are retrained up to their last epoch, landscapes need only forward passes."""
    again = {
        measuring.spec.id: dataclasses.replace(measuring.spec, epochs=max(measuring.epochs))
        for measuring in measurements
        if max(measuring.epochs) > 0
    }
    # One process measures: on a CPU the other cores help little.
    trained = estimate(list(again.values()), snapshot, device, workers if device == "cuda" else 1, small).seconds
    rule = SMALL if small and device == "cpu" else RULE[device]
    forward = 0.0
    for first, *_ in passes_of(measuring for measuring in measurements if measuring.kind == "landscape"):
        settings = first.settings
        images = SURFACES * settings.draws * settings.grid**2 * settings.sample
        forward += images * SLOWER[device][settings.precision] / (PASSES * rule[first.spec.arch])
    return trained + forward


# Two identities: a stripped network is one that never had branches, and idle branches change no weight

MANY = 20
IMAGES = 64


def identity_wanted(study: Scope, arch: str) -> Measuring:
    """Both identities of one run, after one epoch; one seed shows an identity."""
    spec = asymmetric_spec(study, study.readings[0], arch, "cifar100", table_values(study, arch, MANY), MANY)
    return Measuring("identity", "identity", spec, (1,))


def measure_identities(
    measurements: list[Measuring], device: str | None, data_root: Path | None, cache: Path
) -> Measured:
    """The distances between the networks: 0 if the identity is exact."""
    from asymtrain.lab.engine.states import states_at

    for identity in measurements:
        short = dataclasses.replace(identity.spec, epochs=1)
        pair = [dataclasses.replace(short, redundancy=count) for count in (1, MANY)]
        # Separately: a stack of other members may round differently.
        few, many = (states_at([spec], [1], device=device, data_root=data_root)[0] for spec in pair)
        apart = max(float((value - many.parameters[name]).abs().max()) for name, value in few.backbone.items())
        yield [(identity, {1: {"many": MANY, "weights": apart, **_stripped(few, data_root)}})]


def _stripped(state: "State", data_root: Path | None) -> dict[str, float]:
    """A network that had branches against one that never had: outputs, and the number of weights."""
    import torch

    from asymtrain.branches import Parallel, attach
    from asymtrain.lab.data.normalise import normalise
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import build_backbone, run_data

    dataset = load_for(state.spec, data_root)
    data = run_data(state.spec, dataset)
    images = normalise(torch.from_numpy(dataset.test.images[:IMAGES]), data.mean, data.std)
    never, had = (build_backbone(state.spec, dataset) for _ in range(2))
    for network in (never, had):
        network.load_state_dict(state.backbone)
        network.eval()
    branches = attach(
        had,
        images,
        dataset.classes,
        at=list(had.points),
        preset="paper",
        head=Parallel(MANY),
        pool=had.pool,
        layout=had.layout,
        seed=state.spec.seed,
    )
    with torch.inference_mode():
        branches.strip()
        apart = float((had(images) - never(images)).abs().max())
    sizes = [sum(value.numel() for value in network.state_dict().values()) for network in (never, had)]
    return {"outputs": apart, "parameters": float(sizes[1] - sizes[0])}


# How each kind is taken and kept

INSTRUMENTS = {"landscape": measure_landscapes, "attention": measure_attentions, "identity": measure_identities}


def take(
    measurements: Iterable[Measuring], store: Path, device: str | None = None, data_root: Path | None = None
) -> Iterator[Measuring]:
    """Measure what is wanted, store each value as it comes, and yield what was stored.

    The states that are trained for this are kept beside the store.
    """
    cache = store.with_name(store.name + ".states")
    kinds: dict[str, list[Measuring]] = {}
    for measuring in measurements:
        kinds.setdefault(measuring.kind, []).append(measuring)
    for kind, members in kinds.items():
        began = time.perf_counter()
        measured = INSTRUMENTS[kind](members, device, data_root, cache)
        for together in measured:
            seconds = (time.perf_counter() - began) / len(together)
            with Store(store) as record:
                for measuring, values in together:
                    whole = with_origin(values, device, seconds)
                    record.know([measuring.spec])  # not as pending: the run need not be trained
                    record.add_measurement(measuring.spec.id, measuring.name, whole)
            yield from (measuring for measuring, _ in together)
            began = time.perf_counter()


def with_origin(values: Values, device: str | None, seconds: float) -> Values:
    """The values with device, versions and seconds in the first of them, unless the instrument gave them.

    Seconds count from the previous measurement: if runs are trained again together, the first has the training. Only
    their sum over a recipe's measurements is shown.
    """
    if not values:
        return values
    from asymtrain.lab.devices import default_device, device_name

    used = default_device(device)
    origin = {"device": device_name(used), "seconds": seconds, "versions": current().versions}
    first = min(values)
    return {**values, first: {**origin, **values[first]}}
