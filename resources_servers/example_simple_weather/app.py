"""The smallest environment with a tool: whatever the model does, the weather is cold and the reward is 1."""

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool


class SimpleWeatherResourcesServer(SimpleResourcesServer):
    @tool
    async def get_weather(self, city: str) -> dict[str, str]:
        """Tell the weather of a city."""
        return {"city": city, "weather_description": f"The weather in {city} is cold."}

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
