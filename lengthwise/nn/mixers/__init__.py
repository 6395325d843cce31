"""Token mixers other than standard softmax attention, in plain torch: one file per method."""
