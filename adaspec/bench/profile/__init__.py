"""This machine's step times, measured by forced plans and fitted."""
