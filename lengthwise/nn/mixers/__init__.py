"""Token mixers other than softmax attention, one system per file, in plain torch."""
