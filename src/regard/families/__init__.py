"""Families: presets, and two-way mappings to Hugging Face's folders. One file says all of a family."""
