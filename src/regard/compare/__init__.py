"""The claims of the papers as experiments that run."""
