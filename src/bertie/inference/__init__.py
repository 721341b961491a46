"""A model directory -> answers."""
