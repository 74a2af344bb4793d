"""`python -m textgen.gpu check`: what a bare machine with a GPU and torch can say of the GPU path."""
