"""Language models: GGUF files and folders of Hugging Face as a `DecoderDescription`. Nothing here computes with weights."""
