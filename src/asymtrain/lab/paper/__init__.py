"""The paper as data and recipes: its printed numbers, its claims, what is run for them, and the verdicts."""
