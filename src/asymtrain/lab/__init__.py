"""The lab: everything that runs experiments. `pip install "asymtrain[lab]"`."""
