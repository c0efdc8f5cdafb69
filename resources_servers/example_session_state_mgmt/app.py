"""`example_stateful_counter` under another name it is known by."""

from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer

if __name__ == "__main__":
    StatefulCounterResourcesServer.run_webserver()
