"""What every server is made of: sessions, tools, endpoints, the ASGI app, error responses."""
