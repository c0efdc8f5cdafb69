"""Schemas of rows, under the path of the public NeMo Gym."""

from nemo_gym.compat.task_data import TaskDataValidator as TaskDataValidator
from nemo_gym.compat.task_data import load_task_data_schema as load_task_data_schema
from nemo_gym.compat.task_data import normalize_task_fields as normalize_task_fields
