"""Will auxiliary branches help this model, where, and how strongly? `probe` answers before a training budget is spent.

    probing.py    probe(): the order of things        findings.py   what was seen, as frozen values
    copying.py    copies; random states put back      batches.py    the user's batches: train and held out
    placing.py    places where none are named         budget.py     steps that fit the time
    shadow.py     branches that learn, and do not touch the trunk
    trials.py     short paired runs at several alphas
    evidence.py   numbers of a series                 rule.py       thresholds, and the advice they give
    sources.py    models by name, data by name        stacks.py     paired runs of our backbones, in one stack

The first group needs torch alone; `sources` and `stacks` are of the experiment side and imported by the command.
"""

from asymtrain.lab.probe.findings import Advice, Outlook, PlaceFinding, Probe, Shadow, Trial
from asymtrain.lab.probe.probing import probe
from asymtrain.lab.probe.rule import RULE, Rule, advise

__all__ = ["RULE", "Advice", "Outlook", "PlaceFinding", "Probe", "Rule", "Shadow", "Trial", "advise", "probe"]
