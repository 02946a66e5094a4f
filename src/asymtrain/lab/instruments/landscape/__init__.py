"""The instrument `landscape`."""
