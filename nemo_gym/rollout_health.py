"""Health of rollouts, under the path of the public NeMo Gym."""

from nemo_gym.analysis.rollout_health import run_health_checks as run_health_checks
