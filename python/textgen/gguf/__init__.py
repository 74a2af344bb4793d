"""GGUF files, as llama.cpp's tools write them, in the words of a Hugging Face folder; weights stay where they are."""
