"""Did the branches help, and how sure is that?

`compare` takes rows of runs to paired comparisons; the rest are functions of numbers over seeds: intervals (`t`,
Welch, bootstrap over seeds and over test images), effect sizes, corrections for many tests, and what a number of
seeds can detect at all.
"""

from asymtrain.lab.runs import AUXILIARY
from asymtrain.lab.statistics.bootstraps import bootstrap_images, bootstrap_seeds, unpack_answers
from asymtrain.lab.statistics.comparisons import (
    NAMES,
    Verdict,
    compare,
    labels,
    paired,
    sentence,
    separating,
    verdict,
)
from asymtrain.lab.statistics.descriptions import Description, describe
from asymtrain.lab.statistics.effect_sizes import cohen_d_av, cohen_d_z, size_word
from asymtrain.lab.statistics.families import bonferroni, corrected, holm
from asymtrain.lab.statistics.intervals import (
    Interval,
    equivalence_p,
    t_interval,
    welch_interval,
    welch_p_from_moments,
    wilcoxon_p,
)
from asymtrain.lab.statistics.power import minimum_detectable_d, minimum_detectable_improvement

__all__ = [
    "AUXILIARY",
    "NAMES",
    "Description",
    "Interval",
    "Verdict",
    "bonferroni",
    "bootstrap_images",
    "bootstrap_seeds",
    "cohen_d_av",
    "cohen_d_z",
    "compare",
    "corrected",
    "describe",
    "equivalence_p",
    "holm",
    "labels",
    "minimum_detectable_d",
    "minimum_detectable_improvement",
    "paired",
    "sentence",
    "separating",
    "size_word",
    "t_interval",
    "unpack_answers",
    "verdict",
    "welch_interval",
    "welch_p_from_moments",
    "wilcoxon_p",
]
