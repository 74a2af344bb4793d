"""The decoder as a plan: recorded once, then run by the kernels of `csrc/cpu` in one call a step."""
