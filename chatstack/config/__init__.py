"""Recipes from files: what they say, what they may name, and the schema by which editors know it."""
