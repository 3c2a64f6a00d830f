"""Models of speech."""
