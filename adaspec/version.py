"""The version of the package, which files, reports and errors name."""

__version__ = "0.2.0"
