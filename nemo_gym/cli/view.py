"""Look at rollouts: as a web page, or in the terminal."""

from nemo_gym.cli.command import command, read_unchecked
from nemo_gym.common import event_loop
from nemo_gym.server.request_checks import ServerLimits
from nemo_gym.viewer.server import ViewerConfig, serve_viewer
from nemo_gym.viewer.text import text_report


@command(ViewerConfig)
def viewer() -> None:
    """Show rollouts, failures or datasets as a web page, or with --text in the terminal."""
    settings = read_unchecked()
    config = ViewerConfig.read(settings)
    if config.text:
        for line in text_report(config):
            print(line)
        return
    limits = ServerLimits.of(settings)
    event_loop.run(serve_viewer(config, limits=limits, run_token=settings.get("run_token"), announce=_announce))


def _announce(urls: list[str]) -> None:
    print(*(f"Viewer: {url}" for url in urls), "Stop it with Ctrl+C.", sep="\n", flush=True)
