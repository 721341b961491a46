"""The public Python API: a function for each command. `import bertie` exposes them."""
