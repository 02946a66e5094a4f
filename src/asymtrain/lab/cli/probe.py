"""`asymtrain probe`: will auxiliary branches help this model, where, and how strongly?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import parse_values, typed_command
from asymtrain.lab.cli.screen import stderr

PROBE_OUT = Path("asymtrain-probe")
MINUTES = 8.0
SHORTER = "--minutes makes one shorter, --no-pairs measures the alignment alone."


def probe(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="mlp, cnn, vit; timm:NAME; hf:CONFIG; or package.module:function.")],
    data: Annotated[str, typer.Option(help="shapes, cifar10, cifar100 or folder:PATH.")] = "shapes",
    at: Annotated[list[str] | None, typer.Option(help="Places: module names or globs. Default: its blocks.")] = None,
    alphas: Annotated[str | None, typer.Option(help="Weights to try in paired runs. Default: 0.1,1.")] = None,
    no_pairs: Annotated[bool, typer.Option("--no-pairs", help="Measure the alignment only.")] = False,
    seeds: Annotated[int, typer.Option(help="Pairs of short runs at each alpha.")] = 3,
    steps: Annotated[int, typer.Option(help="Of the measurement and of each paired run.")] = 400,
    minutes: Annotated[float, typer.Option(help="Time limit: runs are shortened or left out to keep it.")] = MINUTES,
    every: Annotated[int, typer.Option(help="Steps between measurements.")] = 5,
    batch: Annotated[
        int | None, typer.Option(help="Images in a batch. Default: 32; of a backbone its scale's.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels. Default: the model's own; on a CPU at most 64.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: 0.001; of a backbone its scale's.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the model's builder; repeat it.")] = None,
    scale: Annotated[str, typer.Option(help="Of a backbone: quick (small nets) or paper (as published).")] = "quick",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: the fastest there is.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where downloaded data lies.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the page, the numbers and the figures.")] = PROBE_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure on a short training whether auxiliary branches would help a model, where, and how strongly.

    Nothing is downloaded, and no test image is looked at. The answer may be that it cannot tell.
    """
    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}")
    if learning_rate is not None and not learning_rate > 0:
        raise UsageError(f"--learning-rate must be above 0, got {learning_rate:g}")
    if min(seeds, steps, every) < 1:
        raise UsageError("--seeds, --steps and --every must be 1 or more")
    weights = () if no_pairs else parse_values("--alphas", alphas, (0.1, 1.0))
    if any(not alpha > 0 for alpha in weights):
        raise UsageError(f"--alphas {alphas}: write numbers above 0; 0 is Plain, and is always run")
    with loading():
        from asymtrain.lab.cli.probe_work import probe_backbone_named, probe_stranger, show
        from asymtrain.lab.probe.sources import named_model, parse_option
        from asymtrain.lab.report import check_folder, current_versions, duration
        from asymtrain.models import BACKBONES
    options = dict(parse_option(text) for text in option or ())
    check_folder(out)
    console = stderr()
    common: dict[str, Any] = {
        "alphas": weights, "seeds": seeds, "steps": steps, "minutes": minutes, "every": every,
        "progress": lambda line: console.print(line),
    }  # fmt: skip
    try:
        if model in BACKBONES:
            if at or image_size is not None:
                given = "--at" if at else "--image-size"
                raise UsageError(f"{given} is for models of your own: of a backbone write --option points=[0,2]")
            fields = {"batch": batch, "learning_rate": learning_rate}
            found, notes = probe_backbone_named(model, data, scale, options, fields, device, data_root, common)
        else:
            named = named_model(model, options)
            found, notes = probe_stranger(
                named, data, at, batch or 32, image_size, learning_rate or 1e-3, device, data_root, common
            )
    except KeyboardInterrupt:
        console.print(f"Interrupted: nothing was written to {out}, and no part of a probe is kept. {SHORTER}")
        raise
    facts = {"Command": typed_command(context), "Model": model, "Data": data, **notes}
    facts |= {
        "Rule": found.advice.basis,
        "Time": duration(found.seconds),
        "Versions": ", ".join(f"{name} {version}" for name, version in current_versions().items()),
    }
    show(found, out, facts, json=json)
