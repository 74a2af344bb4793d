"""One file per family of models: Hugging Face config → `DecoderSpec`, and the names of the weights."""
