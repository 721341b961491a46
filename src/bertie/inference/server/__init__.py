"""Serve a model directory over HTTP."""
