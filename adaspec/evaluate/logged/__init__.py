"""What a log of one policy says of another: its own path through the logged texts."""
