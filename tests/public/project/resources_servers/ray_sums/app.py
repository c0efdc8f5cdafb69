import ray
from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from sums import add_up


@ray.remote(scheduling_strategy="SPREAD", num_cpus=0.1)
def remote_sum(numbers):
    return add_up(numbers)


class SumRequest(BaseModel):
    numbers: list[int]


class SumVerifyRequest(BaseVerifyRequest):
    numbers: list[int]


class RaySums(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def add(self, body: SumRequest) -> dict:
        future = remote_sum.remote(body.numbers)
        return {"sum": await future}

    async def verify(self, body: SumVerifyRequest) -> BaseVerifyResponse:
        expected = ray.get(remote_sum.remote(body.numbers))
        return BaseVerifyResponse(**body.model_dump(), reward=float(str(expected) in body.response.output_text))


if __name__ == "__main__":
    RaySums.run_webserver()
