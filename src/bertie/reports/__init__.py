"""Pictures from metrics files."""
