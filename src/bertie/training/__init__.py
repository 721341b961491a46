"""Pre-training, fine-tuning and search; all use the loop in `loop.py`."""
