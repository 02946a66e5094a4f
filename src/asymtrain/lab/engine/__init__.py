"""Specs in, histories out.

    reference.py     one run, the plainest loop that is right; reference_*.py: what it does with two gradients
    stacked.py       R runs at once: batch of every run -> gradients of every run -> one AdamW over all
      setup.py         what a run starts from          device_data.py  batches, on the device
      losses.py        one pure loss of a stack        gradients.py    batched, or side by side on streams
      layout.py        all parameters in one matrix    optimizer.py    AdamW over that matrix
      layers.py        sums over layers, noise, gate   aggregators.py  gradient surgery
      programs.py      eager, compiled, captured       tally.py        sums over an epoch
    plan.py          which specs share a stack, and by which path; memory.py: how many fit
    checkpoint.py    a stack on disk
    states.py        weights at chosen epochs, for instruments
    training.py      plan, train, yield

A run's numbers depend on its spec alone: not on its neighbours in a stack, nor on the stack's size (but for
rounding). Random numbers are keyed by (seed, purpose).
"""

from asymtrain.lab.engine.checkpoint import close_checkpoint, unfinished_plans
from asymtrain.lab.engine.plan import StackPlan, plan
from asymtrain.lab.engine.reference import train_reference
from asymtrain.lab.engine.stacked import Stack
from asymtrain.lab.engine.training import (
    Progress,
    StackProgress,
    default_device,
    load_for,
    train,
    train_stack,
)

__all__ = [
    "Progress",
    "Stack",
    "StackPlan",
    "StackProgress",
    "close_checkpoint",
    "default_device",
    "load_for",
    "plan",
    "train",
    "train_reference",
    "train_stack",
    "unfinished_plans",
]
