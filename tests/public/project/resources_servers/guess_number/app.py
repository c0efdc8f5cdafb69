import re
from typing import Optional

from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gym_base import GymServer


class GuessNumber(GymServer):
    secrets: dict = {}

    async def reset(self, metadata: dict, session_id: str):
        self.secrets[session_id] = metadata["secret"]
        return "Guess a number from 1 to 9.", {}

    async def step(self, action: NeMoGymResponse, metadata: dict, session_id: str):
        found = re.findall(r"\d+", action.output_text)
        if not found:
            return "Say a number.", 0.0, False, False, {}
        guess, secret = int(found[-1]), self.secrets[session_id]
        if guess == secret:
            return None, 1.0, True, False, {"guess": guess}
        return ("Higher." if guess < secret else "Lower."), 0.0, False, False, {"guess": guess}


if __name__ == "__main__":
    GuessNumber.run_webserver()
