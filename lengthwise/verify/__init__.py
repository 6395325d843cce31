"""Check that weights from a third party are what they claim to be."""
