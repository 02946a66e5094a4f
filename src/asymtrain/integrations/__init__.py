"""Branches in other training libraries. Each file needs its own library, and nothing else imports it.

timm.py           a task around any task of timm's training script
transformers.py   one call for the `Trainer` of Hugging Face, and for TRL
lightning.py      a callback for `lightning.Trainer`
composer.py       an algorithm for Composer
torchjd.py        a backward pass that combines the two objectives with an aggregator of TorchJD
_common.py        what the adapters share: labels of a batch, the branches of a training, their part of the optimizer
"""
