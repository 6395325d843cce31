"""What there is: parts, recipes and studies, found without importing them."""
