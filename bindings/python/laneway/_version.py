"""The package's version: that of the library that it is shipped with."""

__version__ = "0.1.0"
