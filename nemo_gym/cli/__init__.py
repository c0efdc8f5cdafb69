"""Temporary"""

from nemo_gym.lazy import lazily

__getattr__ = lazily(
    __name__,
    {
        "run": "nemo_gym.cli.serving:run",
        "status": "nemo_gym.cli.serving:status",
        "stop": "nemo_gym.cli.serving:stop",
        "collect_rollouts": "nemo_gym.cli.rollouts:collect_rollouts",
        "profile": "nemo_gym.cli.analysis:profile",
        "reverify": "nemo_gym.cli.rescoring:reverify",
        "export": "nemo_gym.cli.analysis:export",
        "RunHelper": "nemo_gym.cli.serving:RunHelper",
    },
)
