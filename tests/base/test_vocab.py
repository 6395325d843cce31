"""Vocabularies convert symbols to ids and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.base.types import UsageError, Vocab

SYMBOL_LISTS = st.lists(st.text("0123456789ab+=$", min_size=1, max_size=2), min_size=1, max_size=12, unique=True)


@given(SYMBOL_LISTS, st.data())
def test_decode_undoes_encode(symbols, data):
    vocab = Vocab(tuple(symbols))
    text = data.draw(st.lists(st.sampled_from(symbols), max_size=10))
    ids = vocab.encode(text)
    assert ids.dtype == torch.long
    assert vocab.decode(ids) == vocab.separator.join(text)
    assert vocab.encode(vocab.decode(ids)).equal(ids)
    assert [vocab.symbols[i] for i in ids] == text
    assert [vocab.id(symbol) for symbol in text] == ids.tolist()
    assert len(vocab) == len(symbols)


def test_unknown_and_repeated_symbols_are_refused():
    with pytest.raises(UsageError, match="'x' at position 3 is not one of: 0 1"):
        Vocab(("0", "1")).encode("01x1y")
    with pytest.raises(ValueError, match="repeat"):
        Vocab(("0", "1", "0"))
    with pytest.raises(ValueError):
        Vocab(("0", "1")).id("2")
