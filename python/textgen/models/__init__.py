"""Models as data: a family turns a Hugging Face config into a `DecoderSpec`; one decoder runs every spec."""
