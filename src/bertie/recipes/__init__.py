"""Settings files shipped with the package, one a run."""
