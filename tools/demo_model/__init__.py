"""Trains the small chat model that ships inside Textgen."""
