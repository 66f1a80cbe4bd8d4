"""Stores of the decisions that several processes share."""
