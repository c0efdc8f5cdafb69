"""Calling servers and LLM endpoints.

`server_client.ServerClient` calls the servers of a run by name; `openai_client.NeMoGymAsyncOpenAI` calls one LLM
endpoint and `load_balancer.EndpointPool` several. Both send through `pool.HttpClient`.
"""
