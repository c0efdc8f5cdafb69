"""Rollouts for trainers: token traces, training samples with advantages, and the forms in which trainers take them."""

from nemo_gym.rollouts.token_traces import FlatTokens as FlatTokens
from nemo_gym.rollouts.token_traces import ModelCall as ModelCall
from nemo_gym.rollouts.token_traces import PrefixBreak as PrefixBreak
from nemo_gym.rollouts.token_traces import Segment as Segment
from nemo_gym.rollouts.token_traces import TokenTrace as TokenTrace
from nemo_gym.rollouts.token_traces import TokenTraceError as TokenTraceError
from nemo_gym.rollouts.token_traces import trace_of as trace_of
from nemo_gym.rollouts.token_traces import trace_of_calls as trace_of_calls
from nemo_gym.training.groups import CompleteGroup as CompleteGroup
from nemo_gym.training.groups import GroupOptions as GroupOptions
from nemo_gym.training.groups import GroupScheduler as GroupScheduler
from nemo_gym.training.groups import Source as Source
from nemo_gym.training.samples import VIEWS as VIEWS
from nemo_gym.training.samples import Group as Group
from nemo_gym.training.samples import TrainingSample as TrainingSample
from nemo_gym.training.samples import columns as columns
from nemo_gym.training.samples import group_advantages as group_advantages
from nemo_gym.training.samples import make_groups as make_groups
from nemo_gym.training.samples import nemo_rl_sample as nemo_rl_sample
from nemo_gym.training.samples import samples_of as samples_of
from nemo_gym.training.samples import skyrl_sample as skyrl_sample
from nemo_gym.training.samples import slime_sample as slime_sample
from nemo_gym.training.samples import trl_sample as trl_sample
from nemo_gym.training.samples import verl_sample as verl_sample
