"""Language models of Hugging Face."""
