"""The commands, one file a family. Importing this imports none of them."""

from nemo_gym.lazy import lazily

__getattr__ = lazily(
    __name__,
    {
        "main": "nemo_gym.cli.front:main",
        "display_help": "nemo_gym.cli.front:display_help",
        "completion": "nemo_gym.cli.shells:completion",
        "run": "nemo_gym.cli.serving:run",
        "status": "nemo_gym.cli.serving:status",
        "stop": "nemo_gym.cli.serving:stop",
        "RunConfig": "nemo_gym.cli.serving:RunConfig",
        "RunHelper": "nemo_gym.cli.serving:RunHelper",
        "collect_rollouts": "nemo_gym.cli.rollouts:collect_rollouts",
        "profile": "nemo_gym.cli.analysis:profile",
        "export": "nemo_gym.cli.analysis:export",
        "reverify": "nemo_gym.cli.rescoring:reverify",
        "check_tokens": "nemo_gym.cli.tokens:check_tokens",
        "check_verifier": "nemo_gym.cli.verifiers:check_verifier",
        "test": "nemo_gym.cli.checks:test",
        "test_all": "nemo_gym.cli.checks:test_all",
        "dev_test": "nemo_gym.cli.checks:dev_test",
        "TestConfig": "nemo_gym.cli.checks:TestConfig",
        "TestAllConfig": "nemo_gym.cli.checks:TestAllConfig",
        "init_resources_server": "nemo_gym.cli.scaffold:init_resources_server",
        "dump_config": "nemo_gym.cli.info:dump_config",
        "version": "nemo_gym.cli.info:version",
        "pip_list": "nemo_gym.cli.info:pip_list",
        "PipListConfig": "nemo_gym.cli.info:PipListConfig",
        "VersionConfig": "nemo_gym.cli.info:VersionConfig",
        "GlobalConfigDictParserConfig": "nemo_gym.global_config:GlobalConfigDictParserConfig",
        "ServerInstanceDisplayConfig": "nemo_gym.head_server:ServerInstanceDisplayConfig",
    },
)
