"""Two-way tables between our parameters and Hugging Face folders: one short file a family, and `folder` as the door."""
