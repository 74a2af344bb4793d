"""Tests of downloads, cache and conversion: a hub on loopback, no other network."""
