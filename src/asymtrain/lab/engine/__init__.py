"""Specs in, histories out.

    for epoch in range(epochs):                          # `Stack.advance`
        rates and alphas of every run; shuffle on the device, one order for each run
        for step in range(steps):                        # on a GPU: replay of one captured graph
            batch     = data.next_batch()                # device_data.py: images, labels, dropout masks of every run
                                                         # augmented and mixed by data/augment.py
            gradients = gradients of loss(parameters, batch)  # losses.py, by one of two strategies
            in measured steps: products of the two gradients  # parameters.py, tally.py
            gradient  = signal(gradients)                # signals.py, unless it is the gradient of the total loss
            weights   = update(weights, clip(gradient))  # optimizer.py: one matrix holds all runs, another an average
        accuracies of every run; the sums go to the host once per epoch -> one `Epoch` for each run

    reference.py    one run in the simplest correct loop: stacks are tested against it
    stack.py        R runs at once; programs.py: its compiled parts and its captured step
    modules.py      any module in the form of a backbone; tracing.py: a record of its forward, for the compiler
    setup.py        what a run starts from; schedule.py: its steps, rates and alphas, and when things are measured
    plan.py         which specs share a stack, by which strategy, and how many fit
    training.py     plan, train, yield; checkpoint.py: a stack on disk
    states.py       weights at chosen epochs, for instruments

A run's numbers depend only on its spec: not on its neighbours in a stack, nor (up to rounding) on the stack's size.
Random numbers are keyed by (seed, purpose).
"""

from asymtrain.lab.checkpoints import StackPlan
from asymtrain.lab.devices import default_device
from asymtrain.lab.engine.checkpoint import close_checkpoint
from asymtrain.lab.engine.plan import plan
from asymtrain.lab.engine.reference import train_reference
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.engine.training import Progress, StackProgress, load_for, train, train_stack

__all__ = [
    "Progress", "Stack", "StackPlan", "StackProgress", "close_checkpoint", "default_device", "load_for", "plan",
    "train", "train_reference", "train_stack",
]  # fmt: skip
