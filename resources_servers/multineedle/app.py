"""`example_multi_step` under another name it is known by."""

from resources_servers.example_multi_step.app import MultiStepResourcesServer

if __name__ == "__main__":
    MultiStepResourcesServer.run_webserver()
