"""The tables of the paper, run again: cells, verdicts on the paper's orderings, markdown and a picture."""
