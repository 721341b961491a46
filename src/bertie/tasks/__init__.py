"""Fine-tuning tasks: their files, inputs and scores (Sections 4 and 5.3)."""
