"""Conversion of models: Hugging Face folders, CTranslate2, ONNX; each with a check."""
