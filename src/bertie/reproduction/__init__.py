"""Reproduce the tables of the paper, and test whether its orderings hold."""
