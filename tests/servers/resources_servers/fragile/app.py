"""Its `verify` fails while there is a file that the row names, as if the server had died."""

from pathlib import Path

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.errors import RolloutError


class FragileVerifyRequest(BaseVerifyRequest):
    broken_fpath: str


class FragileResourcesServer(SimpleResourcesServer):
    def verify(self, body: FragileVerifyRequest) -> float:
        if Path(body.broken_fpath).exists():
            raise RolloutError("verifier", "the machine that verifies is gone", retryable=True)
        return float(body.response.output_text == "Done.")


if __name__ == "__main__":
    FragileResourcesServer.run_webserver()
