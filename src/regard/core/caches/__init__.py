"""What decoding and segments remember: key-value caches and memories."""
