"""Studies: each a protocol as data, its analysis and its words."""
