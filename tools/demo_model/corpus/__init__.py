"""Seeded generators of every text the built-in model is trained on."""
