"""Folders of skills, under the path that agents import them from."""

from nemo_gym.data.skill_folders import Skill as Skill
from nemo_gym.data.skill_folders import SkillsRef as SkillsRef
from nemo_gym.data.skill_folders import load_skill_directory as load_skill_directory
from nemo_gym.data.skill_folders import stage_skills as stage_skills
