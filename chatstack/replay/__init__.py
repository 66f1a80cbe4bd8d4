"""Floor 5: recorded conversations run through policies, the recording standing in for the model."""
