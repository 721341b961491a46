"""Engines: what computes a model."""
