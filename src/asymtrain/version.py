"""The version, for rooms that record it: they must not import the package's public face."""

VERSION = "0.2.0"
