"""Options of this environment: the judge, its prompt, which part of a reply is judged, and rewards for verdicts."""

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
    """Prompt template with {question}, {expected_answer} and {generated_answer}. It takes precedence over the file."""

    judge_prompt_template_fpath: str = "prompt_templates/equivalence_llm_judge.txt"
    """The file with the same, relative to the folder of this server."""

    judge_system_message: str | None = None
    judge_equal_label: str = Field(default=EQUAL_LABEL, min_length=1)
    judge_not_equal_label: str = Field(default=NOT_EQUAL_LABEL, min_length=1)

    question_extract_regex: str | None = None
    """Regex for the question in the last user message."""

    response_extract_regex: str | None = None
    """Regex for the answer in a reply."""

    use_per_record_regex: bool = True
    """Use the regex of a row (`template_metadata.output_regex`) in place of `response_extract_regex`."""

    extraction_length_threshold: int | None = 120
    """If a row has a regex, but a gold answer longer than this, the whole reply is judged. Null for never."""

    check_twice_swap: bool = False
    """Judge an answer that was found equal again, with both answers swapped."""

    reward_if_swap_fails: float = Field(default=0.0, allow_inf_nan=False)
    """Reward if the answer is found equal the first time but not when swapped."""

    check_full_generation_on_fail: bool = True
    """Judge the whole reply if the part that the row's regex matches is not equal."""

    reward_if_full_generation_succeeds: float = Field(default=0.5, allow_inf_nan=False)
    """Reward if only the whole reply is found equal."""

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
