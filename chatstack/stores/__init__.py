"""Stores: where several processes keep the decisions that they share."""
