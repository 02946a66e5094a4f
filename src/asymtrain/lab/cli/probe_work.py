"""What `asymtrain probe` does with its options: the probe of a backbone or another model, the page, the screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.lab.cli.screen import show_json, show_table, stderr, stdout
from asymtrain.lab.data import load
from asymtrain.lab.engine import default_device, load_for
from asymtrain.lab.probe import Probe
from asymtrain.lab.probe import probe as probe_model
from asymtrain.lab.probe.images import ImageBatches
from asymtrain.lab.probe.page import probe_tables, write_probe
from asymtrain.lab.probe.sources import Named
from asymtrain.lab.probe.stacks import probe_backbone
from asymtrain.lab.scales import get_scale, scaled_spec


def show(found: Probe, out: Path, facts: Mapping[str, str], *, json: bool) -> None:
    """Write the page; print the tables and the advice, or everything as JSON."""
    files = write_probe(out, found, facts)
    if json:
        show_json({**found.to_dict(), "files": {kind: str(path) for kind, path in files.items()}})
    else:
        for table in probe_tables(found):
            stdout().print(table.title)
            show_table(table.columns, table.rows)
            stdout().print()
        stdout().print(str(found))
    stderr().print(f"Page: {files['page']}")


def probe_backbone_named(
    arch: str,
    data: str,
    scale: str,
    options: dict[str, Any],
    fields: dict[str, Any],
    device: str | None,
    data_root: Path | None,
    common: dict[str, Any],
) -> tuple[Probe, dict[str, str]]:
    """The probe of a backbone of this package, and what the page says of its training."""
    spec = scaled_spec(get_scale(scale), arch, data, **fields)
    if options:
        chosen = {**dict(spec.arch_options), **options}
        spec = scaled_spec(get_scale(scale), arch, data, **fields, arch_options=chosen)
    found = probe_backbone(spec, load_for(spec, data_root), device=device, data_root=data_root, **common)
    rate = f"learning rate {spec.learning_rate:g}, weight decay {spec.weight_decay:g}, batch {spec.batch}"
    return found, {"Training": rate}


def probe_stranger(
    named: Named,
    data: str,
    at: Sequence[str] | None,
    batch: int,
    image_size: int | None,
    learning_rate: float,
    device: str | None,
    data_root: Path | None,
    common: dict[str, Any],
) -> tuple[Probe, dict[str, str]]:
    """The probe of any other model, and what the page says of its images and its training."""
    place = default_device(device)
    size = named.size_for(image_size, small=place.type == "cpu")
    choice = {} if data in ("cifar10", "cifar100") else {"image_size": size}
    dataset = load(data, root=data_root, **choice)
    size = dataset.train.images.shape[-1]  # CIFAR has a size of its own
    if size != named.image_size:
        stderr().print(f"Images of {size} pixels; the model's own size is {named.image_size}.")
    batches = ImageBatches(dataset, batch)
    found = probe_model(
        lambda: named.build(dataset.classes, size).to(place),
        batches,
        None if not at else list(at),
        learning_rate=learning_rate,
        **common,
    )
    images = f"{len(dataset.train)} images of {size} pixels, {dataset.classes} classes"
    return found, {"Images": images, "Training": f"learning rate {learning_rate:g}, batch {batch}"}
