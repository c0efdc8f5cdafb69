"""Folders of skills, under the path that agents import them from."""

from nemo_gym.data.skill_folders import *
