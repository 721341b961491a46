"""Model directories, and the checkpoint formats of other libraries."""
