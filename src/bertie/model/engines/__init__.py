"""Engines: torch, ONNX Runtime and OpenVINO behind one protocol."""
