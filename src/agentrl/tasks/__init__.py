"""Task files, prompts, answers."""
