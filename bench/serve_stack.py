"""What `ng_run` does, and nothing else: serve the stack that the arguments describe until told to stop."""

import asyncio
import signal
import sys

from nemo_gym.common.logging import configure_logging
from nemo_gym.config.loading import load_config
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.runtime.supervisor import default_echo


async def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Launcher(load_config(sys.argv[1:], use_dotenv=False, fill_ports=False), echo=default_echo):
        await stop.wait()


if __name__ == "__main__":
    configure_logging()
    asyncio.run(main())
