"""The device's computations folded into few kernels; `adaspec.device` says what they mean."""
