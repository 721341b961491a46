"""Documents -> shards -> pre-training examples."""
