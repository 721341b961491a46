"""A model directory -> answers over HTTP."""
