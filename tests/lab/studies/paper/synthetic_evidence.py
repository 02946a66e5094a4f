"""Evidence with a given interval, for tests of the verdicts."""

import math

import numpy as np
from scipy import stats

from asymtrain.lab.studies.paper.claims import claim, epochs_wanted, family, paper_change
from asymtrain.lab.studies.paper.evidence import Effect, Quantity
from asymtrain.lab.studies.paper.numbers import cells
from asymtrain.lab.studies.paper.verdicts import judge

VIT = "table1/vit/20"  # the paper: +25.4%, so the band is 12.7 to 38.1
SEEDS = tuple(range(42, 52))
BITS = 1e-6


def spread(low, high, cells, n=10):
    """Values whose Bonferroni t interval is this one, with the quantile taken straight from scipy."""
    pattern = np.linspace(-1, 1, n)
    error = (high - low) / 2 / stats.t.ppf(1 - 0.025 / cells, n - 1)
    return (low + high) / 2 + pattern / pattern.std(ddof=1) * error * math.sqrt(n)


def effect(label, low, high, seeds=SEEDS, epochs=None, **more):
    """Pairs whose change has this interval in percent of Plain."""
    values = spread(low, high, family(label), len(seeds))
    plain = 0.4 + 0.02 * np.cos(np.arange(len(seeds)))
    asymmetric = plain + values / 100 * plain.mean()
    epochs = epochs_wanted(label) if epochs is None else epochs
    return Effect(label, tuple(plain), tuple(asymmetric), epochs, (f"{label}-a", f"{label}-b"), tuple(seeds), **more)


def quantity(label, low, high):
    values = spread(low, high, family(label))
    return Quantity(label, tuple(values), epochs_wanted(label), (label,), SEEDS)


def verdict(name, *evidence):
    return judge(claim(name), {"primary": {one.label: one for one in evidence}})


def paper_like(label, seed):
    """Evidence as the paper has it, with an interval of half a percent to each side and a draw of its own."""
    table = label.partition("/")[0]
    if table == "inference":
        return Quantity(label, (0.0,) * 10, 0, (), SEEDS)
    if table == "table2":
        return quantity(label, cells()[label].value - 0.001, cells()[label].value + 0.001)
    wave = np.random.default_rng(seed).permutation(spread(-0.5, 0.5, family(label)))
    sides = [cells()[label].plain, cells()[label].asymmetric] if table in ("table4", "table14") else [0.4, None]
    plain, asymmetric = sides[0], sides[1] or 0.4 * (1 + paper_change(label) / 100)
    return Effect(label, (plain,) * 10, tuple(asymmetric + wave / 100 * plain), 200, (), SEEDS)
