"""The parameters of the viewer."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.metrics import PASS_THRESHOLD

DEFAULT_PORT = 7860


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ViewerConfig(CommandConfig):
    """Show rollouts, failures or datasets as a web page, or with --text in the terminal.

    Files may be compressed (.gz, .zst) and may still be written. Open two files to compare them task by task. The
    index of a large file is kept beside it as `<name>_index.sqlite`.

    Examples:

    ```bash
    ng view
    ng view rollouts.jsonl
    ng view before.jsonl after.jsonl
    ng view --text rollouts.jsonl
    ng view --text rollouts.jsonl +row=3
    ng_viewer +jsonl_fpath=rollouts.jsonl +server_port=7861
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("jsonl_fpath",)

    jsonl_fpath: Annotated[list[str], BeforeValidator(_as_list)] = Field(default=["results"], min_length=1)
    """The file to show, or a list of files. A folder stands for the newest rollouts in it. `ng view FILE ...` is the
    same."""

    server_host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine the page requires the token in the address that the command prints."""

    server_port: int | None = Field(default=None, ge=0, lt=65536)
    """Port of the page. By default 7860, or a free one if that is taken."""

    tokenizer: str | None = None
    """A `tokenizer.json`, or a folder with one. The token view shows the text of each token with it; without it, only
    where the record has it."""

    text: bool = False
    """Print to the terminal instead of serving a page."""

    row: int | None = Field(default=None, ge=0)
    """With text: print the conversation of this row."""

    where: str = ""
    """With text: a filter, such as `reward < 1 and response.usage.total_tokens > 500`."""

    sort: str = ""
    """With text: the field to sort rows by; `-reward` is descending."""

    search: str | None = None
    """With text: print the rows that contain this text."""

    limit: int = Field(default=20, ge=1)
    """With text: number of rows to print."""

    pass_threshold: float = PASS_THRESHOLD
    """With text: minimum reward that counts as a pass."""
