"""Models for others: folders in Hugging Face's layout, CTranslate2, ONNX; each with a report on what came out."""
