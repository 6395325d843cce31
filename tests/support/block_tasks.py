"""User-defined tasks that have problems of some sizes only."""

from dataclasses import dataclass

import lengthwise as lw


@dataclass(frozen=True)
class Blocks(lw.SequenceTask):
    """Sort the digits of each block of three."""

    symbols = tuple("0123")
    answers_each_symbol = True
    listed_sizes = range(3, 301, 3)

    def from_rows(self, sizes, rows):
        assert not (sizes % 3).any(), f"drawn with sizes {sizes[sizes % 3 > 0]}"
        answer = rows.view(len(rows), -1, 3).sort(-1).values.view(rows.shape)
        return lw.Problems(sizes, rows, sizes[:, 0], answer, sizes[:, 0], rounds=sizes[:, 0])

    def reference(self, prompt):
        return "".join("".join(sorted(prompt[start : start + 3])) for start in range(0, len(prompt), 3))


@dataclass(frozen=True)
class FewBlocks(Blocks):
    """Sort the digits of each block of three, in sequences of 3, 12 or 24 digits."""

    listed_sizes = (3, 12, 24)
