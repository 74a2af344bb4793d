"""What the integration tests share: the launcher as a user starts it, models to serve, and what they must answer."""
