"""A custom task with `sample` and `parse`: which of two numbers is larger?"""

from dataclasses import dataclass

import torch

import lengthwise as lw


@dataclass(frozen=True)
class Larger(lw.Task):
    """Write the larger of two numbers of n digits each, with leading zeros."""

    symbols = (*"0123456789", ",")  # the symbols of prompts and answers; a symbol's id is its index here
    signs = (",",)  # separators of numbers

    def sample(self, sizes, generator):  # one problem for each row of sizes, without a Python loop over rows
        shape = len(sizes), 2, int(sizes.max())
        return self.from_rows(sizes, torch.randint(10, shape, generator=generator))

    def parse(self, text):  # one problem, from typed text
        first, sign, second = text.partition(",")
        if not (sign and first and len(first) == len(second) and {*first, *second} <= {*"0123456789"}):
            raise lw.UsageError(f"{self.name}: {text!r} is not two numbers of equal length, such as 17,08")
        digits = torch.tensor([[[int(digit) for digit in number] for number in (first, second)]])
        return self.from_rows(torch.tensor([[len(first)]]), digits)

    def from_rows(self, sizes, digits):  # digits: rows × 2 × width
        length, index = sizes[:, 0], torch.arange(digits.shape[2])
        digits = digits * (index < sizes)[:, None]  # padding is zero
        differ = digits[:, 0] != digits[:, 1]
        first = differ.long().argmax(1)  # the leading digit that decides; 0 if none does
        bigger = digits[torch.arange(len(digits)), :, first].argmax(1)
        prompt = torch.zeros(len(digits), 2 * digits.shape[2] + 1, dtype=torch.long)
        prompt[:, : digits.shape[2]] = digits[:, 0]
        prompt.scatter_(1, sizes, self.symbols.index(","))
        prompt.scatter_add_(1, sizes + 1 + index, digits[:, 1])  # zeros change nothing
        answer = digits[torch.arange(len(digits)), bigger]
        return lw.Problems(sizes, prompt, 2 * length + 1, answer, length, rounds=length)

    def reference(self, prompt):  # the simplest algorithm, on text; `lengthwise check` compares `sample` with it
        return max(prompt.split(","))

    def answer_slots(self, sizes):  # how many symbols an answer may take at these sizes
        return sizes[:, 0]


if __name__ == "__main__":
    task = Larger()
    print(lw.check(task))
    print(task.format(task.parse("17,08").answer[0]))
