"""`example_simple_weather` under another name it is known by."""

from resources_servers.example_simple_weather.app import SimpleWeatherResourcesServer

if __name__ == "__main__":
    SimpleWeatherResourcesServer.run_webserver()
