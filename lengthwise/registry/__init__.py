"""Registry of parts, recipes and studies, found without importing them."""
