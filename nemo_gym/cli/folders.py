"""Find the server folder that a parameter `entrypoint` names."""

from pathlib import Path

from nemo_gym.common.paths import SERVER_FOLDERS, find, nearest
from nemo_gym.errors import ConfigError


def parse_entrypoint(text: str) -> Path:
    """Parse `<kind>/<name>`. The folder need not exist."""
    path = Path(text)
    if path.is_absolute() or len(path.parts) != 2 or ".." in path.parts:
        raise ConfigError(
            f"The entrypoint is '{text}', expected a relative path of two parts, such as resources_servers/my_server."
        )
    kind = path.parts[0]
    if kind not in SERVER_FOLDERS:
        listed = ", ".join(SERVER_FOLDERS)
        raise ConfigError(
            f"The entrypoint is '{text}', expected a folder in one of {listed}.{nearest(kind, SERVER_FOLDERS)}"
        )
    return path


def find_folder(entrypoint: str) -> Path:
    """The existing folder, in the working directory or beside the package."""
    folder = find(parse_entrypoint(entrypoint), what="server folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, expected the folder of a server.")
    return folder
