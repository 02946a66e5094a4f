"""Hyperparameters by the paper's rules: validation accuracy decides, and no test accuracy is computed.

    grids.py         the values that are tried, as data
    stages.py        `Stage` and `Search`: what is tried in which order, and which spec a trial is;
                     the Pragmatic Gold Standard and the dual search
    results.py       what a set of runs says about a search: a pure function
    running.py       train what is missing, read what is stored, or take values from elsewhere

    search = gold_standard(base)                       # base: the Asymmetric run that the values are for
    (result,) = run_searches([search], store=path)     # the same call goes on where it stopped
    chosen_spec(result, "plain", seed=42)              # a final run with the chosen values

Stages that do not wait for each other form a round. A round of all searches is one list of specs, so it trains as one
stack. What was chosen is a function of the runs alone: an interrupted search replays its stages from the store.
"""

from asymtrain.lab.search.grids import SEARCH_SEEDS
from asymtrain.lab.search.results import SearchResult, StageResult, Trial, chosen_spec, final_specs, replay
from asymtrain.lab.search.running import chosen_values, read_searches, run_searches
from asymtrain.lab.search.stages import STRATEGIES, Search, Stage, dual_search, gold_standard

__all__ = [
    "SEARCH_SEEDS", "STRATEGIES", "Search", "SearchResult", "Stage", "StageResult", "Trial", "chosen_spec",
    "chosen_values", "dual_search", "final_specs", "gold_standard", "read_searches", "replay",
    "run_searches",
]  # fmt: skip
