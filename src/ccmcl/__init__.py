"""Continual learning with a memory that fits in kilobytes."""
