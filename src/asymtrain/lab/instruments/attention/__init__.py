"""The instrument `attention`: where a vision transformer looks, Plain beside Asymmetric."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import RUN_OPTIONS, Bench, Instrument, Interrupt, counting
from asymtrain.lab.report.figure import Page
from asymtrain.lab.texts import comma_numbers, counted

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.instruments.attention.result import AttentionResult, AttentionSettings

MOST_IMAGES = 6  # in a figure: a page embeds them
Measured = tuple["list[AttentionResult]", "Dataset", dict[str, str]]


@dataclass(frozen=True)
class AttentionOptions:
    """When and how attention is measured; a test compares the defaults with `AttentionSettings`."""

    at: Annotated[
        str | None, typer.Option(help="Epochs to look at, with commas; 0 is before training. Default: three of them.")
    ] = None
    sample: Annotated[int, typer.Option(help="Test images to look at.")] = 100
    query: Annotated[str, typer.Option(help="class_token, or mean: averaged over all queries.")] = "class_token"
    threshold: Annotated[float, typer.Option(help="A patch is covered above this multiple of the uniform value.")] = 0.5
    images: Annotated[int, typer.Option(help=f"Images in the figures of maps, 0 to {MOST_IMAGES}.")] = 4

    def __post_init__(self) -> None:
        if not 0 <= self.images <= MOST_IMAGES:
            raise UsageError(f"--images must be between 0 and {MOST_IMAGES}, got {self.images}")

    def settings(self) -> "AttentionSettings":
        from asymtrain.lab.instruments.attention.result import AttentionSettings

        values: dict[str, Any] = {"sample": self.sample, "query": self.query, "threshold": self.threshold}
        return AttentionSettings(**values)


class AttentionInstrument(Instrument[AttentionOptions, Measured]):
    """Measure how attention is spread over an image: peak, entropy, Gini, coverages, maps.

    Uses stored runs (--run), or trains pairs for it. A run is a function of its settings: weights that are not in the
    folder of states are trained again. Called again, it goes on with the states that are there.
    """

    name = "attention"
    options = AttentionOptions
    run_options = (*RUN_OPTIONS, "states")
    for_any_model = "measure_model measures any model"

    def measure(self, options: AttentionOptions, bench: Bench) -> Measured:
        """A result for each run and epoch, the data it was measured on, and what was left out."""
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.instruments.attention.measure import check_spec, has_attention, measure_states

        settings = options.settings()  # wrong settings are refused first
        chosen = bench.choose(archs=("vit",), with_plain=True)
        self.check_backbones(chosen)
        lacking = {arch for arch in {spec.arch for spec in chosen} if not has_attention(arch)}
        specs = [spec for spec in chosen if spec.arch not in lacking] or chosen  # if none are left, refused below
        if len({(spec.dataset, spec.dataset_options) for spec in specs}) > 1:
            raise UsageError("these runs learn different data: measure those of one dataset at a time")
        dataset = load_for(specs[0], bench.data_root)
        kinds = {(spec.arch, spec.arch_options): spec for spec in specs}.values()
        for spec in kinds:
            check_spec(spec, dataset, settings)
        epochs = parse_epochs(options.at, min(spec.epochs for spec in specs))
        if without := len(chosen) - len(specs):
            bench.remark(f"left out for want of attention: {counted(without, 'run')} of {', '.join(sorted(lacking))}")
        try:
            states = bench.states(specs, epochs)
            with bench.telling("measuring") as say:
                tell = counting(say, "measuring: state")
                results = measure_states(states, dataset, settings, bench.device, keep=options.images, progress=tell)
        except KeyboardInterrupt:
            file_names = {f"{spec.id}-{epoch}" for spec in specs for epoch in epochs if epoch}
            there = {path.stem for path in bench.states_folder.glob("*.safetensors")} & file_names
            done = f"{len(there)} of {len(file_names)} trained states are in {bench.states_folder}"
            if not file_names:
                done = "nothing was to be trained, and nothing is kept"
            raise Interrupt(
                f"Stopped: {done}. Give the same command to go on; a run of which a state is missing is trained from "
                "its start."
            ) from None
        if not results:
            raise UsageError("every run diverged before these epochs: give smaller ones in --at")
        for spec in specs:
            values = {result.state[1]: result.to_dict() for result in results if result.spec == spec}
            bench.keep(spec, settings.key, values)
        lost = sum(sum(result.spec == spec for result in results) < len(epochs) for spec in specs)
        facts = {"Epochs": ", ".join(map(str, epochs))}
        if lost:
            facts["Diverged"] = f"{lost} of {len(specs)} runs, which are left out from that epoch on"
        return results, dataset, facts

    def page(self, options: AttentionOptions, result: Measured) -> Page:
        from asymtrain.lab.instruments.attention.show import attention_page

        return attention_page(*result, images=options.images)


INSTRUMENT = AttentionInstrument()


def parse_epochs(text: str | None, epochs: int) -> tuple[int, ...]:
    """Epochs from a list with commas; by default a fifth, three fifths and all of training (20, 60, 100 of 100)."""
    if text is None:
        return tuple(sorted({max(1, round(epochs * share)) for share in (0.2, 0.6, 1)}))
    advice = f"--at {{}}: write epochs from 0 to {epochs} with commas, as in 0,{epochs}"
    numbers = comma_numbers(text, advice)
    if max(numbers) > epochs:
        raise UsageError(advice.format(repr(text)))
    return tuple(sorted(numbers))
