"""Will auxiliary branches help this model, where, and how strongly? `probe` answers before a training budget is spent.

    probing.py    probe(): the order of things        result.py     what was seen and what is advised, as values
    inputs.py     the user's model, batches, places   budget.py     steps and runs that fit in the time
    training.py   branches that learn and do not touch the network; short paired runs at several alphas
    evidence.py   numbers of a series                 rule.py       thresholds, and the advice they give
    sources.py    images as batches                   stacks.py     paired runs of our backbones, in one stack

The modules above `sources` need torch alone; `sources` and `stacks` are imported by the command. The rule's constants
are fitted, and its advice scored, by benchmarks/probe.py.
"""

from asymtrain.lab.probe.probing import probe
from asymtrain.lab.probe.result import Advice, Outlook, PlaceFinding, Probe, Shadow, Trial
from asymtrain.lab.probe.rule import RULE, Rule, advise

__all__ = ["RULE", "Advice", "Outlook", "PlaceFinding", "Probe", "Rule", "Shadow", "Trial", "advise", "probe"]
