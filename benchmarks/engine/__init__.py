"""The native engine: products of integers against their floors, recurrences, an online runtime."""
