"""The wire types of the Responses, Chat Completions and Messages APIs, and the conversions between them."""
