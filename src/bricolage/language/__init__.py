"""Text from language models: prompts, sampling, sequences that run together, speculation, and OpenAI's routes."""
