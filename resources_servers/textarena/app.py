"""Games of TextArena. The policy is one player; the others are scripted, or models of the same config."""

import asyncio
import copy
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from nemo_gym import CookieJar, ModelServerRef, NeMoGymResponse
from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import BaseNextMessageRequest, BaseResourcesServerConfig, BaseSeedSessionRequest
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession, import_extra, open_episode
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.responses import raise_response_failure

_MOVE = re.compile(r"\[[^\[\]]+\]")
LOST = -1.0
"""TextArena's reward of the loser of a game."""


class TextArenaConfig(BaseResourcesServerConfig, extra="forbid"):
    opponent_model_server: ModelServerRef | None = None
    """The model that plays against the policy where a row says `opponent: model`."""


class TextArenaRow(BaseSeedSessionRequest):
    game: str
    """The id for `textarena.make`, such as `TicTacToe-v0`."""
    seed: int | None = None
    num_players: int = 2
    player: int = 0
    """The number of the policy's player."""
    opponent: Literal["random", "model"] = "random"
    """random: a legal move, if there is one among those in square brackets that the observation lists, chosen by the
    seed."""
    game_kwargs: dict[str, Any] = Field(default_factory=dict)


class TextArenaGame:
    """A game in progress."""

    def __init__(self, row: TextArenaRow) -> None:
        self.row, textarena = row, import_extra("textarena", extra="textarena")
        try:
            self.env = textarena.make(row.game, **row.game_kwargs)
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            raise RolloutError("input", f"TextArena cannot make {row.game!r}: {error}") from error
        if not 0 <= row.player < row.num_players:
            raise RolloutError("input", f"player is {row.player}; expected 0 to {row.num_players - 1}.")
        self.chance = random.Random(row.seed)
        self.is_over = False
        self._random_state = random.getstate()
        try:
            with self._own_randomness():
                self.env.reset(num_players=row.num_players, seed=row.seed)
        except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
            raise RolloutError(
                "input", f"TextArena cannot start {row.game!r} with {row.num_players} players: {error}"
            ) from error

    def observe(self) -> tuple[int, str]:
        player, observation = self.env.get_observation()
        return player, str(observation)

    def step(self, action: str) -> None:
        with self._own_randomness():
            self.is_over = bool(self.env.step(action)[0])

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Games draw from Python's global generator, which the games of other rollouts use, too."""
        shared = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(shared)

    def random_move(self, player: int, observation: str) -> str:
        """A legal move: one of those that the observation lists last, else any that it names, else a number.

        Raises RolloutError if none is legal: TextArena would declare the policy the winner."""
        listed: list[list[str]] = [moves for line in observation.splitlines() if (moves := _MOVE.findall(line))]
        named = sorted({move for moves in listed for move in moves})
        first = self.chance.choice(listed[-1]) if listed else "[pass]"
        for move in (first, *self.chance.sample(named, len(named)), *(f"[{number}]" for number in range(10))):
            if self._is_legal(player, move):
                return move
        message = f"The random opponent knows no legal move of {self.row.game!r}."
        raise RolloutError("environment", message, retryable=False)

    def _is_legal(self, player: int, move: str) -> bool:
        """Try a move on a copy of the game."""
        with self._own_randomness():
            tried = copy.deepcopy(self.env)
            tried.step(move)
            random.setstate(self._random_state)
        is_lost = tried.state.game_info.get(player, {}).get("invalid_move", False)
        return not is_lost and getattr(tried.state, "error_count", 0) <= getattr(self.env.state, "error_count", 0)

    def reward(self) -> float:
        """The policy's reward: 0 in a game that is not over."""
        if not self.is_over:
            return 0.0
        rewards, _info = self.env.close()
        return float(rewards.get(self.row.player, 0.0))

    def close(self) -> None:
        """The game holds nothing but memory."""


class TextArenaResourcesServer(EpisodeResourcesServer):
    EXTRA = "textarena"

    config: TextArenaConfig

    async def seed_session(self, body: TextArenaRow, session: EpisodeSession) -> None:
        if body.opponent == "model" and self.config.opponent_model_server is None:
            raise RolloutError(
                "input", "The row has a model as opponent, but the config has no opponent_model_server."
            )
        await asyncio.to_thread(import_extra, "textarena", extra="textarena")  # takes seconds the first time
        session.episode = TextArenaGame(body)

    async def next_message(  # type: ignore[override]
        self, body: BaseNextMessageRequest, session: EpisodeSession, jar: CookieJar
    ) -> str | None:
        """Play the policy's move and the opponents' moves after it, until it is the policy's turn again."""
        game: TextArenaGame = session.episode
        if game is None:
            raise RolloutError("input", "The session has no game: call /seed_session first.")
        open_episode(body, session)
        if body.turn > 0 and not game.is_over:
            game.step(last_text(body.response))
            session.steps += 1
        while not game.is_over:
            player, observation = game.observe()
            if player == game.row.player:
                return observation
            game.step(await self._opponent_move(game, player, observation, jar))
        if session.steps == 0:
            raise RolloutError("input", f"The game {game.row.game!r} is over before the policy's first turn.")
        session.is_over, session.reward = True, game.reward()
        return None

    def reward_of_leaving(self, session: EpisodeSession) -> float:
        """Score a policy that leaves a game against others as having lost."""
        return LOST if session.episode.row.num_players > 1 else 0.0

    async def _opponent_move(self, game: TextArenaGame, player: int, observation: str, jar: CookieJar) -> str:
        if game.row.opponent == "random" or self.config.opponent_model_server is None:
            return game.random_move(player, observation)
        server, asked = self.config.opponent_model_server.name, {"input": observation}
        response = await self.server_client.call(
            server, "/v1/responses", asked, answer=NeMoGymResponse, cause="model", jar=jar
        )
        raise_response_failure(response, server=server)
        return last_text(response)
