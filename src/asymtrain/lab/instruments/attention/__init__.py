"""The instrument `attention`."""
