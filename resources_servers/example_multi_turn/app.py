"""Guess a code of digits. The environment answers each guess with how many digits are right, until it is found."""

import re

from pydantic import Field

from nemo_gym.answers import is_denied, last_text, without_thinking
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionState,
    SimpleResourcesServer,
)
from nemo_gym.common.markup import without_comments

_GUESS = re.compile(r"\d+")


class Game(SessionState):
    secret: str = ""
    max_guesses: int = 0
    guesses: int = 0
    is_found: bool = False


class CodeSeedSessionRequest(BaseSeedSessionRequest):
    secret: str = Field(pattern="^[0-9]+$")
    max_guesses: int = Field(ge=1)


class CodeVerifyResponse(BaseVerifyResponse):
    guesses: int


class CodeResourcesServer(SimpleResourcesServer):
    given_history = "refuse"

    async def seed_session(self, body: CodeSeedSessionRequest, game: Game) -> None:
        game.secret, game.max_guesses = body.secret, body.max_guesses

    async def next_message(self, body: BaseNextMessageRequest, game: Game) -> str | None:
        """Judge the last number of the model's message; nothing more to say when the game is over."""
        if body.turn == 0:
            return f"My code has {len(game.secret)} digits. You have {game.max_guesses} guesses. What is the first?"
        guess = last_guess(without_comments(without_thinking(last_text(body.response))))
        game.guesses += 1
        game.is_found = guess == game.secret
        if game.is_found or game.guesses >= game.max_guesses:
            return None
        if len(guess) != len(game.secret):
            return f"That is no code of {len(game.secret)} digits."
        right = sum(one == other for one, other in zip(guess, game.secret, strict=True))
        common = sum(min(guess.count(digit), game.secret.count(digit)) for digit in set(guess))
        return f"{guess}: {right} in the right place, {common - right} elsewhere."

    async def verify(self, body: BaseVerifyRequest, game: Game) -> CodeVerifyResponse:
        return CodeVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=float(game.is_found),
            guesses=game.guesses,
        )


def last_guess(text: str) -> str:
    """The last number that is not denied, as in "not 42"; empty without one."""
    places = reversed(list(_GUESS.finditer(text)))
    return next((found[0] for found in places if not is_denied(text, *found.span())), "")
