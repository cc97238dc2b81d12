"""CUDA: the kernels' sources, how they are built, and how a built library is loaded."""
