"""Sections 4 and 5: what a BERT is fine-tuned for."""
