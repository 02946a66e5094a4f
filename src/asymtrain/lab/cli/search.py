"""`asymtrain search`: find learning rate, weight decay and alpha by validation accuracy."""

from pathlib import Path
from typing import Annotated, Any

import typer

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import STORE_NAME, parse_archs, parse_values

SEARCH_OUT = Path("asymtrain-search")
TABLE_13 = "cifar100"


def search(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="shapes, cifar10, cifar100 or folder:PATH.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="mlp, cnn, vit; several with commas. Default: all.")] = None,
    strategy: Annotated[
        str, typer.Option(help="gold: Plain's learning rate and weight decay serve both. dual: each has its own.")
    ] = "gold",
    redundancy: Annotated[int | None, typer.Option(help="Branches at each point.")] = None,
    activation: Annotated[str | None, typer.Option(help="Live branches: last, all, random or cycle.")] = None,
    learning_rates: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    weight_decays: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    alphas: Annotated[str | None, typer.Option(help="Values with commas. Default: the paper's.")] = None,
    alpha_points: Annotated[
        int | None, typer.Option(help="Points of the paper's linear alphas, 0 to 50 (MLP on CIFAR-10). Default: 11.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="With dual: alpha until alpha is searched.")] = None,
    fixed_weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay while the learning rate is searched. Default: the paper's.")
    ] = None,
    fair: Annotated[
        bool, typer.Option("--fair", help="Give Plain as many trials of dropout and label smoothing as alpha gets.")
    ] = False,
    criterion: Annotated[str, typer.Option(help="Validation accuracy of the best epoch, or of the last.")] = "best",
    paper_values: Annotated[
        bool, typer.Option("--paper-values", help="Show Table 13's values; train nothing.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many (3: 1000 to 1002), from..to (1000..1002), or which (1000,); none of 42 to 51."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of a search run. Default: 3/4 of a final run's.")] = None,
    scale: Annotated[str, typer.Option(help="quick: small nets. paper: as published.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder of the page, the numbers and the store.")] = SEARCH_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Where downloaded data lies.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: the fastest there is.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the next call goes on.")] = None,
    store: Annotated[Path | None, typer.Option(help=f"Record of runs. Default: {STORE_NAME} in the folder.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what the store holds already.")] = False,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster. Default: one on this machine.")] = None,
) -> None:
    """Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.

    Every grid trains as one stack. Called again, it goes on where it stopped.
    """
    if redundancy is not None and redundancy < 1:
        raise UsageError(f"--redundancy must be 1 or more, got {redundancy}")
    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}")
    with loading():
        from asymtrain.lab import search as searching
        from asymtrain.lab.cli.search_work import parse_search_seeds, remarks, show, table_13, train
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.report import check_folder
        from asymtrain.lab.scales import get_scale, scaled_spec
    if strategy not in searching.STRATEGIES:
        raise unknown_name("strategy of a search", strategy, searching.STRATEGIES)
    chosen = get_scale(scale)
    fields = {"redundancy": redundancy, "activation": activation, "alpha": alpha, "precision": precision}
    if paper_values:
        if data not in (None, TABLE_13):
            raise UsageError(f"Table 13 is of {TABLE_13}: leave out --data {data}, or search there")
        data = TABLE_13
    bases = [scaled_spec(chosen, name, data, **fields) for name in parse_archs(arch)]
    if paper_values:
        results = [table_13(base) for base in bases]
        check_folder(out)
        show(context, results, out, None, json=json)
        return
    options: dict[str, Any] = {
        "learning_rates": parse_values("--learning-rates", learning_rates, searching.LEARNING_RATES),
        "weight_decays": parse_values("--weight-decays", weight_decays, searching.WEIGHT_DECAYS),
        "fixed_weight_decay": searching.FIXED_WEIGHT_DECAY if fixed_weight_decay is None else fixed_weight_decay,
        "fair": fair,
        "criterion": criterion,
        "seeds": parse_search_seeds(seeds) if seeds else searching.SEARCH_SEEDS,
        "epochs": epochs,
    }
    if alpha_points is not None and (alphas or not any(searching.is_linear(base.arch, base.dataset) for base in bases)):
        raise UsageError(
            "--alpha-points is of the linear alphas, which only the MLP on cifar10 has by default: "
            "leave it out, or list the values with --alphas alone"
        )
    points = searching.LINEAR_POINTS if alpha_points is None else alpha_points
    searches = []
    for base in bases:
        tried = parse_values("--alphas", alphas, searching.alpha_grid(base.arch, base.dataset, points))
        searches.append(searching.STRATEGIES[strategy](base, alphas=tried, **options))
    check_folder(out)
    place = store or out / STORE_NAME
    check_folder(place.parent)
    load_for(bases[0], data_root)  # data that are missing or broken show before anything is written
    where = {"executor": executor, "address": address, "device": device, "minutes": minutes, "fresh": fresh}
    results, interrupted, going_on = train(searches, store=place, data_root=data_root, **where)
    show(context, results, out, place, json=json)
    remarks(results, place, interrupted, going_on)
    if interrupted:
        raise typer.Exit(130)
