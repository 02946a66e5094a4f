"""Instruments: look at a run or at a training state, change nothing.

conflict.py     the two gradients through training: Tables 2 and 15 of the paper
trajectory.py   convergence, generalisation gap, when two ways of training part
landscape.py    the loss surface around a state, along many directions, at several redundancies; landscape_module.py
                around any module
attention.py    where a transformer looks: peak, entropy, Gini, coverage, rollout; for any model with queries and keys
features.py     what the units that branches see do: silent ones, scale, directions; over the first steps of a run
"""

from asymtrain.lab.instruments.alignment.conflict import conflicts
from asymtrain.lab.instruments.attention.attention import measure_attention, measure_model, measure_states
from asymtrain.lab.instruments.attention.capture import attention_maps
from asymtrain.lab.instruments.attention.settings import AttentionSettings
from asymtrain.lab.instruments.features.features import FeatureStatistics, feature_statistics, follow_features
from asymtrain.lab.instruments.landscape.landscape import measure_landscape
from asymtrain.lab.instruments.landscape.module import measure_module_landscape
from asymtrain.lab.instruments.landscape.result import Landscape
from asymtrain.lab.instruments.landscape.settings import LandscapeSettings
from asymtrain.lab.instruments.trajectory.trajectory import compare_trajectories

__all__ = [
    "AttentionSettings",
    "FeatureStatistics",
    "Landscape",
    "LandscapeSettings",
    "attention_maps",
    "compare_trajectories",
    "conflicts",
    "feature_statistics",
    "follow_features",
    "measure_attention",
    "measure_landscape",
    "measure_model",
    "measure_module_landscape",
    "measure_states",
]
