"""The version of this package, which is that of the program in its wheel."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("belljar")
except PackageNotFoundError:  # used from the source tree
    __version__ = "0"
