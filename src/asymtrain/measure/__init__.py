"""Instruments: look at a run or at a training state, change nothing.

conflict.py     the two gradients through training: Tables 2 and 15 of the paper
trajectory.py   convergence, generalisation gap, when two ways of training part
landscape.py    the loss surface around a state, along many directions, at several redundancies; landscape_module.py
                around any module
attention.py    where a transformer looks: peak, entropy, Gini, coverage, rollout; for any model with queries and keys
features.py     what the units that branches see do: silent ones, scale, directions; over the first steps of a run
"""

from asymtrain.measure.attention import measure_attention, measure_model, measure_states
from asymtrain.measure.attention_capture import attention_maps
from asymtrain.measure.attention_settings import AttentionSettings
from asymtrain.measure.conflict import conflicts
from asymtrain.measure.features import FeatureStatistics, feature_statistics, follow_features
from asymtrain.measure.landscape import measure_landscape
from asymtrain.measure.landscape_module import measure_module_landscape
from asymtrain.measure.landscape_result import Landscape
from asymtrain.measure.landscape_settings import LandscapeSettings
from asymtrain.measure.trajectory import compare_trajectories

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
