"""EfficientNet-B0 on one NVIDIA GPU with kernels of its own, written in Triton."""
