"""Token mixers other than softmax attention, in plain torch."""
