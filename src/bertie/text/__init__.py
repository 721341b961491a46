"""A string -> word pieces."""
