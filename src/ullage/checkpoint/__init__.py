"""What a model's directory says of its weights: headers only, no tensor is read."""
