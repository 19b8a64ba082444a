"""What the learned policy computes per row, on torch tensors of any device."""
