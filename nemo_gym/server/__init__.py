"""The parts of every server: sessions, tools, endpoints, the ASGI app, error responses."""
