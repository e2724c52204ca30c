# scikit-learn has no types: here is what the examples use.
