"""What every room stands on: errors, settings, random numbers, files, progress, processes."""
