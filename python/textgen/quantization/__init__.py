"""Weights of few bits: one file per format, each a `Weight` that says how it is made and how it multiplies."""
