"""Recorded conversations run through policies, the recording standing in for the model."""
