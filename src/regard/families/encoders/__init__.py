"""Text encoders of Hugging Face."""
