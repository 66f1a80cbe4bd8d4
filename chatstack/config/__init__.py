"""Recipes from files: reading them, resolving the names in them, and the JSON schema for editors."""
