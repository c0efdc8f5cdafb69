"""Find the server folder that a parameter `entrypoint` names."""

from pathlib import Path

from nemo_gym.common.paths import SERVER_FOLDERS, find, nearest
from nemo_gym.errors import ConfigError

MAX_PARTS = 4


def parse_entrypoint(text: str, *, max_parts: int = 2) -> Path:
    """Parse `<kind>/<name>`. The folder need not exist."""
    path = Path(text)
    if path.is_absolute() or not 2 <= len(path.parts) <= max_parts or ".." in path.parts:
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
    """The existing folder, in the working directory or beside the package. The name of a server may have a slash."""
    folder = find(parse_entrypoint(entrypoint, max_parts=MAX_PARTS), what="server folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, expected the folder of a server.")
    return folder


def project_of(folder: Path) -> Path:
    """The folder that has `resources_servers/` and its siblings, of one of the servers in it."""
    return next((above.parent for above in folder.parents if above.name in SERVER_FOLDERS), folder.parent.parent)
