"""Calling servers and LLM endpoints.

`server_client.ServerClient` calls the servers of a run by name; `openai_client.NeMoGymAsyncOpenAI` calls one LLM
endpoint and `load_balancer.EndpointPool` several. Both send through `pool.HttpClient`. Authors of servers import these
names from `nemo_gym.server_utils` and `nemo_gym.openai_utils`.
"""
