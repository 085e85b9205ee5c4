"""What a stimulus log can tell: the same decisions once more, one request's story, other decisions."""
