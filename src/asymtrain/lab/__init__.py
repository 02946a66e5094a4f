"""The lab: everything that runs experiments. `pip install -e ".[lab]"` in a clone."""
