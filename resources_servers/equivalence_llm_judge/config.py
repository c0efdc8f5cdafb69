"""How this environment is configured: who judges and how, what of a reply is judged, what a verdict is worth."""

import string
from pathlib import Path

from pydantic import Field

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError
from nemo_gym.judge import EQUAL_LABEL, NOT_EQUAL_LABEL, JudgeConfig

PLACEHOLDERS = ("question", "expected_answer", "generated_answer")


class EquivalenceConfig(BaseResourcesServerConfig, JudgeConfig, extra="forbid"):
    judge_prompt_template: str | None = None
    """What the judge is asked, with {question}, {expected_answer} and {generated_answer}. Counts before the file."""

    judge_prompt_template_fpath: str = "prompt_templates/equivalence_llm_judge.txt"
    """The file with the same, relative to the folder of this server."""

    judge_system_message: str | None = None
    judge_equal_label: str = Field(default=EQUAL_LABEL, min_length=1)
    judge_not_equal_label: str = Field(default=NOT_EQUAL_LABEL, min_length=1)

    question_extract_regex: str | None = None
    """What of the last user message is the question."""

    response_extract_regex: str | None = None
    """What of a reply is the answer."""

    use_per_record_regex: bool = True
    """Whether the regex of a row (`template_metadata.output_regex`) counts, and before `response_extract_regex`."""

    extraction_length_threshold: int | None = 120
    """If a row has a regex, but a gold answer longer than this, the whole reply is judged. Null for never."""

    check_twice_swap: bool = False
    """Whether an answer that is found equal is judged again in the place of the gold answer."""

    reward_if_swap_fails: float = Field(default=0.0, allow_inf_nan=False)
    """What it is worth to be found equal only the first time."""

    check_full_generation_on_fail: bool = True
    """Whether the whole reply gets a second chance if what the regex of the row found is not equal."""

    reward_if_full_generation_succeeds: float = Field(default=0.5, allow_inf_nan=False)
    """What it is worth to be found equal at the second chance."""

    regex_timeout_s: float = Field(default=2.0, gt=0)
    """CPU time limit of a regex. A reply that exceeds it scores 0.0, with `timed_out` in the record."""

    max_answer_chars: int = Field(default=1_000_000, ge=1)
    """A longer reply is not judged: it scores 0.0, with `too_long` in the record."""

    def prompt_template(self) -> str:
        """The template, known to be one."""
        if self.judge_prompt_template is not None:
            return _checked(self.judge_prompt_template, "judge_prompt_template")
        path = self.judge_prompt_template_fpath
        sibling_path = Path(__file__).parent / path
        file = sibling_path if sibling_path.is_file() else find(path, what="judge_prompt_template_fpath")
        return _checked(file.read_text(), str(file))


def _checked(template: str, place: str) -> str:
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(f"{place} is no template: {error}. Write a literal brace twice.") from error
    unknown, missing = sorted(found - set(PLACEHOLDERS)), sorted(set(PLACEHOLDERS[1:]) - found)
    if unknown or missing:
        raise ConfigError(
            f"{place} has the placeholders {sorted(found)}; expected {list(PLACEHOLDERS)}. "
            "Write a literal brace twice."
        )
    return template
