"""The network (Section 3), the files it is stored in, and the engines that run it."""
