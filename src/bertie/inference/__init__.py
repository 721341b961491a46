"""Predict with a model directory, in Python, from files and over HTTP."""
