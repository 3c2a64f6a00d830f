"""Families: presets, and two-way mappings to Hugging Face's folders, one file a family."""
