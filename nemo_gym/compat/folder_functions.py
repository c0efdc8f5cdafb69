"""Small functions that single folders of the public NeMo Gym import."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from pydantic import BaseModel
from starlette.responses import JSONResponse

from nemo_gym.common.paths import PARENT_DIR, search_roots
from nemo_gym.common.plugins import plugin
from nemo_gym.config.keys import NG_FAILURE_CLASS_KEY, NG_JUDGE_ERROR_KEY
from nemo_gym.config.loading import load_config
from nemo_gym.config.types import DatasetConfig
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.prompts import PromptConfig, fill_prompt
from nemo_gym.server.base import BaseServer

IGNORE_FILES = frozenset(
    (
        *("finish_params.json", "history.json", "history.pkl", "inprogress_history.json", "metadata.json"),
        *("log.txt", "reference_files"),
    )
)
"""Files in the folder of a task that are not what the agent delivers."""

TOKEN_HEADER = NEMO_GYM_MCP_SESSION_TOKEN_HEADER = "X-NeMo-Gym-Session-Token"  # noqa: S105 -- the name of a header
_SERVER_NAME: ContextVar[str | None] = ContextVar("server_name", default=None)
connection_pool = SimpleNamespace(_SERVER_NAME=_SERVER_NAME)
"""Holds the name of the server that a request of the shared client is for."""


@contextmanager
def server_named(name: str | None) -> Iterator[None]:
    """Say which server the requests inside are for."""
    token = _SERVER_NAME.set(name)
    try:
        yield
    finally:
        _SERVER_NAME.reset(token)


def is_deliverable(path: str | Path) -> bool:
    """True for a file that the agent delivers."""
    return IGNORE_FILES.isdisjoint(Path(path).parts)


def build_image_input(prompt_config: PromptConfig, question: str, image: str) -> list[JsonObject]:
    """Return the messages of a prompt, with an image in the user's."""
    messages: list[JsonObject] = [dict(each) for each in fill_prompt(prompt_config, {"question": question})]
    url = image if image.startswith(("data:", "http://", "https://")) else f"data:image/png;base64,{image}"
    text = {"type": "input_text", "text": messages[-1]["content"]}
    messages[-1]["content"] = [text, {"type": "input_image", "image_url": url, "detail": "high"}]
    return messages


def resolve_under_cwd_or_install(relative: str | Path, *, validator: Callable[[Path], bool] | None = None) -> Path:
    """Return the path in the first search root where it exists, else in the first."""
    accepts = validator or Path.exists
    found = [root / relative for root in search_roots()]
    return next((path for path in found if accepts(path)), found[0] if found else PARENT_DIR / relative)


@dataclass(frozen=True)
class BenchmarkConfig:
    """A benchmark: a config with a dataset of that type."""

    name: str
    path: Path
    agent_name: str
    num_repeats: int
    dataset: Any
    environment_server: str | None = None

    @classmethod
    def from_config_path(cls, path: str | Path, *, strict: bool = True) -> Self | None:
        """Return the benchmark of a config file, or None if it has none."""
        from nemo_gym.compat.global_config import GlobalConfigDictParserConfig
        from nemo_gym.config.checks import server_blocks
        from nemo_gym.config.keys import ALIASES_KEY_NAME

        place = Path(path)
        initial = {str(key): value for key, value in GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT.items()}
        config = load_config([f"+config_paths=['{place}']"], initial=initial, use_dotenv=False, fill_ports=False)
        for server in server_blocks(config).servers:
            for dataset in server.datasets or ():
                if dataset.type == "benchmark":
                    aliases = config.get(ALIASES_KEY_NAME) or {}
                    front = next((name for name, agent in aliases.items() if agent == server.name), None)
                    repeats = dataset.num_repeats
                    return cls(dataset.name, place, server.name, repeats, _with_paths(dataset), front)
        if strict:
            raise ValueError(f"{path} has no dataset of the type benchmark")
        return None


def _with_paths(dataset: DatasetConfig) -> SimpleNamespace:
    fields = dataset.model_dump()
    paths = ("jsonl_fpath", "prepare_script", "prompt_config")
    return SimpleNamespace(**{name: Path(v) if name in paths and v else v for name, v in fields.items()})


def judge_failure_reply(error: Exception, arguments: Sequence[Any]) -> JSONResponse:
    """Return the row with reward 0, marked as one whose judge failed, so that a collection does not count it."""
    given = (each for each in arguments if isinstance(each, BaseModel | dict) and not isinstance(each, BaseServer))
    body = next(given, {})
    row: JsonObject = body if isinstance(body, dict) else body.model_dump(mode="json")
    settings = row.get("instance_config")
    marks = {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": "judge_failed",
        "failure_reason": str(error),
        NG_FAILURE_CLASS_KEY: "judge_failed",
        NG_JUDGE_ERROR_KEY: str(error),
        "instance_config": {**(settings if isinstance(settings, dict) else {}), "mask_sample": True},
    }
    return JSONResponse({**row, **marks})


def maybe_auto_expose(server: Any, app: Any) -> None:
    """Let the app's MCP endpoint, which it has already, offer the app's own routes as tools."""
    if server.core().own_app is None:
        server.core().own_app = plugin("fastapi").FastApiApp(app)
