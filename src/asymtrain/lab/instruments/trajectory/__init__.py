"""The instrument `trajectory`."""
