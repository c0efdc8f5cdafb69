"""Make datasets: from other people's, or from a seed. And the README's tables of what there is."""

from nemo_gym.cli.command import FAILED, command, read_parameters
from nemo_gym.cli.folders import find_folder
from nemo_gym.cli.output import print_result
from nemo_gym.common.paths import PARENT_DIR, find
from nemo_gym.common.words import count_of
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.data.generate import GenerateDataConfig
from nemo_gym.data.generate import generate_data as generate_files
from nemo_gym.data.import_rows import ImportConfig, import_rows
from nemo_gym.data.reports import number_ranges


@command(ImportConfig)
def import_dataset() -> None:
    """Turn another dataset into rows, and say what was dropped."""
    config = read_parameters(ImportConfig)
    report = import_rows(config)
    lines = [
        f"{count_of(report.rows, 'row')} in {config.output_jsonl_fpath}, from {count_of(report.read, 'record')}",
        *(
            f"{count:>8} dropped: {reason} ({_records(report.dropped[reason])})"
            for reason, count in report.counts.most_common()
        ),
    ]
    print_result({"rows": report.rows, "records": report.read, "dropped": dict(report.counts)}, "\n".join(lines))


def _records(indices: list[int]) -> str:
    return number_ranges([index + 1 for index in indices], "record", most=5)


@command(GenerateDataConfig)
def generate_data() -> None:
    """Make train and validation data for an environment from a seed."""
    config = read_parameters(GenerateDataConfig)
    made = generate_files(config, find_folder(config.entrypoint))
    lines = [f"{count_of(file.rows, 'row')} in {file.path}" for file in made.files]
    lines.append(f"The verifier gave {made.verified} gold responses the full reward.")
    files = [{"path": str(file.path), "rows": file.rows} for file in made.files]
    print_result({"files": files, "verified": made.verified}, "\n".join(lines))


class UpdateReadmeConfig(CommandConfig):
    """Update the tables of environments in the README from their configurations."""

    readme_fpath: str = "README.md"
    """The README. The tables go between its START_..._TABLE and END_..._TABLE comments."""

    check: bool = False
    """Change nothing; the exit code is 1 if the tables are not up to date."""


@command(UpdateReadmeConfig)
def update_readme() -> int:
    """Update the tables of environments in the README."""
    from nemo_gym.data.readme_tables import update_readme as update
    from nemo_gym.data.readme_tables import updated_readme

    config = read_parameters(UpdateReadmeConfig)
    path = find(config.readme_fpath)
    if config.check:
        is_current = updated_readme(path.read_text(), PARENT_DIR) == path.read_text()
        print(f"{path}: the tables are {'up to date' if is_current else 'not up to date; run ng_update_readme'}")
        return 0 if is_current else FAILED
    print(f"{path}: {'updated' if update(path, PARENT_DIR) else 'was up to date'}")
    return 0
