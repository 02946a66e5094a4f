"""The instrument `features`."""
