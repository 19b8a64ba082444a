"""What happened: trace schema, store and importers."""
