"""``python -m tools.demo_model`` trains the built-in model again."""

from tools.demo_model.train import main

main()
