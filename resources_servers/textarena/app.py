"""Games of TextArena. The policy is one player; the others are scripted, or models of the same config."""

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field

from nemo_gym import CookieJar, ModelServerRef, NeMoGymResponse
from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import BaseNextMessageRequest, BaseResourcesServerConfig, BaseSeedSessionRequest
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession, import_extra
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.responses import raise_response_failure

_MOVE = re.compile(r"\[[^\[\]]+\]")


class TextArenaConfig(BaseResourcesServerConfig, extra="forbid"):
    opponent_model_server: ModelServerRef | None = None
    """The model that plays against the policy where a row says `opponent: model`."""


class TextArenaRow(BaseSeedSessionRequest):
    game: str
    """As `textarena.make` takes it, such as `TicTacToe-v0`."""
    seed: int | None = None
    num_players: int = 2
    player: int = 0
    """Which player the policy is."""
    opponent: Literal["random", "model"] = "random"
    """random: one of the moves in square brackets that the observation lists last, chosen by the seed."""
    game_kwargs: dict[str, Any] = Field(default_factory=dict)


class TextArenaGame:
    """A game in progress."""

    def __init__(self, row: TextArenaRow) -> None:
        self.row, textarena = row, import_extra("textarena", extra="textarena")
        try:
            self.env = textarena.make(row.game, **row.game_kwargs)
        except (KeyError, ValueError, TypeError, AssertionError) as error:
            raise RolloutError("input", f"TextArena cannot make {row.game!r}: {error}") from error
        self.chance = random.Random(row.seed)
        self.is_over = False
        self._random_state = random.getstate()
        with self._own_randomness():
            self.env.reset(num_players=row.num_players, seed=row.seed)

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

    def random_move(self, observation: str) -> str:
        """One of the last moves that the observation lists; an example from the rules if it lists none."""
        listed = [moves for line in observation.splitlines() if (moves := _MOVE.findall(line))]
        return self.chance.choice(listed[-1]) if listed else "[pass]"

    def reward(self) -> float:
        """The policy's reward: 0 in a game that is not over."""
        if not self.is_over:
            return 0.0
        rewards, _info = self.env.close()
        return float(rewards.get(self.row.player, 0.0))

    def close(self) -> None:
        """The game holds nothing but memory."""


class TextArenaResourcesServer(EpisodeResourcesServer):
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
        if body.turn > 0 and not game.is_over:
            game.step(last_text(body.response))
            session.steps += 1
        while not game.is_over:
            player, observation = game.observe()
            if player == game.row.player:
                return observation
            game.step(await self._opponent_move(game, observation, jar))
        session.is_over, session.reward = True, game.reward()
        return None

    async def _opponent_move(self, game: TextArenaGame, observation: str, jar: CookieJar) -> str:
        if game.row.opponent == "random" or self.config.opponent_model_server is None:
            return game.random_move(observation)
        server, asked = self.config.opponent_model_server.name, {"input": observation}
        response = await self.server_client.call(
            server, "/v1/responses", asked, answer=NeMoGymResponse, cause="model", jar=jar
        )
        raise_response_failure(response, server=server)
        return last_text(response)
