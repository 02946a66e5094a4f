"""Branches in the tools people train with. Each file needs its own library, and nothing else imports it.

lightning.py      a callback for `lightning.Trainer`
transformers.py   a mixin for the `Trainer` of Hugging Face
torchjd.py        a backward pass that combines the two objectives with an aggregator of TorchJD
_common.py        what the adapters share: labels of a batch, parameters into an optimizer
"""
