"""The version, for modules that record it: they must not import the public face of the package."""

VERSION = "0.2.0"
