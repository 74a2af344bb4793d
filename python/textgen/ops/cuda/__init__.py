"""Kernels for NVIDIA GPUs, compiled where they run (`docs/gpu.md`). Nothing else imports this."""
