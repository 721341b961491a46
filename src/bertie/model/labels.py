"""The label of what has none."""

IGNORED = -100  # torch's cross_entropy leaves it out: its ignore_index
