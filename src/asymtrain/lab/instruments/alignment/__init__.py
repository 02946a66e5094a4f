"""The instrument `alignment`."""
