"""Engines: torch and ONNX Runtime behind one protocol."""
