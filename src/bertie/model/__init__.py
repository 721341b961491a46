"""The network (Section 3) and the files it lives in."""
