"""Decisions about language models: who runs their prompts and who their steps."""
