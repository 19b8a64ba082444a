"""What a log of one policy says of another: estimates at the logged decisions."""
