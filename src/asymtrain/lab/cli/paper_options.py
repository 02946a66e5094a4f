"""The options that the commands of `asymtrain paper` share."""

from pathlib import Path
from typing import Annotated

import typer

from asymtrain.lab.cli.options import STORE_NAME, seeds_option

PAPER_OUT = Path("asymtrain-paper")

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="table1, table15, figure2 ...; or all.")]
ScaleName = Annotated[str, typer.Option("--scale", help="quick: minutes on a CPU. paper: as published.")]
Seeds = Annotated[str | None, seeds_option]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Of final runs; trials of a search keep their share.")]
ReadingNames = Annotated[
    list[str] | None,
    typer.Option("--reading", help="primary, sum, all, best, instruments; several with commas, or every."),
]
Archs = Annotated[
    list[str] | None, typer.Option("--arch", help="Do these backbones alone: mlp, cnn, vit; several with commas.")
]
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32 or bf16.")]
Data = Annotated[
    str | None,
    typer.Option("--data", help="At the scale quick: shapes (default), or cifar for a part of CIFAR. Paper: cifar."),
]
Values = Annotated[
    str, typer.Option("--hyperparameters", help="Where the paper gives none: searched, or paper for Table 13's.")
]
Fair = Annotated[
    bool,
    typer.Option("--fair", help="Tables 10, 13, 16: also a Plain with as many trials (dropout, smoothing) as alpha."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder of the page, the tables and the store.")]
StorePath = Annotated[
    Path | None, typer.Option("--store", help=f"Record of runs. Default: {STORE_NAME} in the folder.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1. Default: the fastest there is.")]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Where downloaded data lies.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
