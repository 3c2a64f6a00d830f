"""Image encoders, and the towers of image and text."""
