"""MiniWoB++: small tasks on a web page, such as to book a flight or to click the right button, in a real browser."""

from typing import TYPE_CHECKING

from pydantic import Field

from nemo_gym.base_resources_server import BaseSeedSessionRequest, BaseVerifyRequest, Score
from nemo_gym.browser import BrowserConfig, BrowserResourcesServer, BrowserSession, Site
from resources_servers.miniwob.package import HOST, page_files

if TYPE_CHECKING:
    from playwright.async_api import Page

START = """seed => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 2147483647;
  core.startEpisodeReal();
  core.hideDisplay();
  core.startEpisode = () => {};
}"""
"""Time is never over, and a page that has ended does not offer to start again: only the first result counts."""
STATE = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"
GOAL = "() => { const found = core.getUtterance(); return found.utterance || found; }"


class MiniwobConfig(BrowserConfig):
    viewport_width: int = Field(default=332, ge=100, le=4096)
    viewport_height: int = Field(default=214, ge=100, le=4096)
    max_actions: int = Field(default=30, ge=1)


class MiniwobSeedSessionRequest(BaseSeedSessionRequest):
    task: str = Field(pattern=r"^[a-z0-9-]+$")
    """The name of its page, such as `login-user`."""
    seed: int = Field(ge=0, lt=2**53)


class MiniwobVerifyRequest(BaseVerifyRequest):
    task: str
    seed: int


class Task(Site):
    """One page with one seed."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(f"http://{HOST}/miniwob/{name}.html", page_files)
        self.seed = seed
        self.raw_reward, self.is_done = 0.0, False

    async def opened(self, page: "Page") -> None:
        await page.evaluate(START, self.seed)

    async def goal(self, page: "Page") -> str:
        return str(await page.evaluate(GOAL))

    async def ended(self, page: "Page") -> str | None:
        if page.url.partition("#")[0] != self.url:
            return "The page of the task was left. The episode is over."
        done, raw_reward = await page.evaluate(STATE)
        if not done:
            return None
        self.is_done, self.raw_reward = True, float(raw_reward)
        return "The task has ended."


class MiniwobResourcesServer(BrowserResourcesServer):
    config: MiniwobConfig

    async def seed_session(self, body: MiniwobSeedSessionRequest, browser: BrowserSession) -> None:
        browser.site = Task(body.task, body.seed)

    async def verify(self, body: MiniwobVerifyRequest, browser: BrowserSession) -> Score:
        """1 if the page's own reward is 1. `raw_reward` is that reward, without its factor for time."""
        task: Task = browser.site
        return Score(
            float(task.is_done and task.raw_reward == 1.0),
            raw_reward=task.raw_reward,
            is_done=task.is_done,
            actions=browser.actions,
        )


if __name__ == "__main__":
    MiniwobResourcesServer.run_webserver()
