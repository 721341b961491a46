"""Question answering as in SQuAD v1.1 and v2.0 (Sections 4.2 and 4.3)."""
