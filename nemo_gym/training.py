"""Rollouts for trainers: token traces, training samples with advantages, and the forms in which trainers take them."""

from nemo_gym.analysis.trainer_views import *
from nemo_gym.analysis.training_samples import *
from nemo_gym.rollouts.token_traces import *
