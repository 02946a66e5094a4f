"""Branches in the tools people train with. Each file needs its own library, and nothing else imports it.

lightning.py      a callback for `lightning.Trainer`
transformers.py   the `Trainer` of Hugging Face with branches, and a mixin for subclasses of it
torchjd.py        a backward pass that combines the two objectives with an aggregator of TorchJD
_common.py        what the adapters share: labels of a batch, parameters in an optimizer, where branches end
"""
