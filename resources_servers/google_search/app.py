"""Multiple-choice questions that need a search on the web. The letter of the answer goes into a box."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from pydantic import Field, PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import text_of_last_item
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
    tool,
)
from nemo_gym.compute import Compute, ComputeError, LimitExceededError
from resources_servers.google_search.extraction import NOTHING_FETCHED, PageError, page_text, parsed_option
from resources_servers.google_search.web import Web, WebError, connected

CHECK_TIMEOUT_S = 10.0
"""CPU seconds to look for the answer in a very long reply."""


class GoogleSearchResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    google_api_key: str = Field(min_length=1, repr=False)
    """The key of the Custom Search API. Put it into `env.yaml`."""

    google_cx: str = Field(min_length=1)
    """The id of the search engine."""

    search_url: str = "https://www.googleapis.com/customsearch/v1"
    """The search API."""

    request_timeout_s: float = Field(default=10.0, gt=0)
    """Time limit for the search API, and for a page."""

    extract_timeout_s: float = Field(default=10.0, gt=0)
    """Time limit for extracting the text of a page."""

    allow_private_addresses: bool = False
    """Allow pages on this machine and in its network. The model chooses the pages, so leave it off."""


class GoogleSearchVerifyRequest(BaseVerifyRequest):
    expected_answer: str
    task_difficulty_qwen3_32b_avg_8: float


class GoogleSearchResourcesServer(SimpleResourcesServer):
    config: GoogleSearchResourcesServerConfig

    _web: Web = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        config = self.config
        async with connected(
            timeout_s=config.request_timeout_s, allow_private_addresses=config.allow_private_addresses
        ) as self._web:
            yield

    @tool
    async def search(self, query: Annotated[str, Field(description="What to search for.")]) -> dict[str, str]:
        """Search the web with Google. Gives up to 10 results."""
        config = self.config
        try:
            found = await self._web.search(
                config.search_url, key=config.google_api_key, cx=config.google_cx, query=query
            )
        except WebError as error:
            found = f"Error: Unexpected error - {error}"
        return {"search_results": found}

    @tool
    async def browse(
        self, url: Annotated[str, Field(description="The address of the page.")], compute: Compute
    ) -> dict[str, str]:
        """Read the text of a web page. Of a long page only the beginning and the end are given."""
        try:
            page = await self._web.page(url)
            text = NOTHING_FETCHED if page is None else await self._text(page, compute)
        except (WebError, PageError, LimitExceededError, ComputeError) as error:
            text = f"Error: Unexpected error = {error}"
        return {"page_content": text}

    async def _text(self, page: bytes, compute: Compute) -> str:
        if not page.strip():
            return NOTHING_FETCHED
        return await compute.run(page_text, page, timeout_s=self.config.extract_timeout_s)

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        if not re.fullmatch("[A-Z]", row["expected_answer"]):
            raise ValueError(f"expected_answer is {row['expected_answer']!r:.100}; expected the letter of an option")

    async def verify(self, body: GoogleSearchVerifyRequest, compute: Compute) -> Score:
        text = text_of_last_item(body.response)
        option = await compute.run_if_long(parsed_option, text, timeout_s=CHECK_TIMEOUT_S, on_limit=None)
        return Score(float(option == body.expected_answer), parsed_option=option)
