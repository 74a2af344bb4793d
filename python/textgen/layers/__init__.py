"""The building blocks of a decoder: small callables over weights that know how to load themselves."""
