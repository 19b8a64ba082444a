"""adaspec: decides, per step and per request, which drafter speculates and how far."""

__version__ = "0.1.0"
