"""Foundations: errors, settings, files, tables, kernels, random numbers, workers."""
