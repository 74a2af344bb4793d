"""Tests of the launcher: no network, no torch, no real router."""
