"""Numbers in, numbers out: intervals and tests over seeds, verdicts, bootstraps, effect sizes, corrections, power;
`sequential` has the interval that stays valid when one looks after every value.

`estimates` has means that leave out undefined values; `asymtrain.lab.comparisons` applies all this to rows of runs.
"""

from asymtrain.lab.statistics.bootstraps import bootstrap_images, bootstrap_seeds, unpack_answers
from asymtrain.lab.statistics.decisions import (
    FEWEST,
    LEVEL,
    VERDICTS,
    Decision,
    Verdict,
    colour_of,
    decide,
    direction,
    is_within,
)
from asymtrain.lab.statistics.effects import (
    bonferroni,
    cohen_d_av,
    cohen_d_z,
    holm,
    minimum_detectable_d,
    minimum_detectable_improvement,
    size_word,
)
from asymtrain.lab.statistics.intervals import Interval, equivalence_p, t_interval, wilcoxon_p
from asymtrain.lab.statistics.sequential import half_width, sequential_interval, values_to_decide

__all__ = [
    "FEWEST", "LEVEL", "VERDICTS", "Decision", "Interval", "Verdict", "bonferroni", "bootstrap_images",
    "bootstrap_seeds", "cohen_d_av", "cohen_d_z", "colour_of", "decide", "direction", "equivalence_p",
    "half_width", "holm", "is_within", "minimum_detectable_d", "minimum_detectable_improvement",
    "sequential_interval", "size_word", "t_interval", "unpack_answers", "values_to_decide", "wilcoxon_p",
]  # fmt: skip
