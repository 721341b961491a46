"""Model directories, and the formats of other libraries."""
