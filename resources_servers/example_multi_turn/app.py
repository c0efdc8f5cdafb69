"""Guess a code of digits. The environment answers each guess with how many digits are right, until it is found."""

import re

from pydantic import Field

from nemo_gym.answers import Declaration, final_declaration, last_text, shown
from nemo_gym.base_resources_server import (
    BaseNextMessageRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
)

_GUESS = re.compile(r"(?<![-\u2212\d.])[0-9]+(?![0-9]|\.[0-9])")


class Game(SessionState):
    secret: str = ""
    max_guesses: int = 0
    guesses: int = 0
    is_found: bool = False


class CodeSeedSessionRequest(BaseSeedSessionRequest):
    secret: str = Field(pattern="^[0-9]+$")
    max_guesses: int = Field(ge=1, strict=True)


class CodeResourcesServer(SimpleResourcesServer):
    given_history = "refuse"

    async def seed_session(self, body: CodeSeedSessionRequest, game: Game) -> None:
        game.secret, game.max_guesses = body.secret, body.max_guesses

    async def next_message(self, body: BaseNextMessageRequest, game: Game) -> str | None:
        """Judge the last number of the model's message; nothing more to say when the game is over."""
        if body.turn == 0:
            return f"My code has {len(game.secret)} digits. You have {game.max_guesses} guesses. What is the first?"
        if game.is_found or game.guesses >= game.max_guesses:
            return None
        guess = last_guess(shown(last_text(body.response)), len(game.secret))
        game.guesses += 1
        game.is_found = guess == game.secret
        if game.is_found or game.guesses >= game.max_guesses:
            return None
        if len(guess) != len(game.secret):
            return f"That is no code of {len(game.secret)} digits."
        right = sum(one == other for one, other in zip(guess, game.secret, strict=True))
        common = sum(min(guess.count(digit), game.secret.count(digit)) for digit in set(guess))
        return f"{guess}: {right} in the right place, {common - right} elsewhere."

    async def verify(self, body: BaseVerifyRequest, game: Game) -> Score:
        return Score(float(game.is_found), guesses=game.guesses)


def last_guess(text: str, digits: int) -> str:
    """The last number with so many digits, or else of any length, that is not negated ("not 42") or withdrawn; empty
    without one."""
    numbers = [Declaration(*each.span(), each[0]) for each in _GUESS.finditer(text)]
    found = final_declaration(text, [each for each in numbers if len(each.content) == digits] or numbers)
    return found.content if found else ""
