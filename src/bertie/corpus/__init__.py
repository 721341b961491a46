"""Turn documents into shards of token ids, and shards into pre-training examples."""
