"""Sorting numbers by their size, by their labels (McLeish et al. 2024, section 4)."""

from __future__ import annotations

import string
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.digits import Order, as_read, without_leading_zeros
from lengthwise.tasks import Task, within
from lengthwise.types import Problems, UsageError

LABELS = string.ascii_uppercase + string.ascii_lowercase
FIRST, COLON, COMMA = 10, 10 + len(LABELS), 11 + len(LABELS)  # ids of the first label and of the two signs


@dataclass(frozen=True)
class Sorting(Task):
    """Labelled numbers → their labels, in ascending order of the numbers; equal ones in the order in which they stand.
    ``A:321,B:54`` → ``B,A``. T = how many there are.

    The sizes are how many numbers, and the digits that each has at most: uniform from 1 up, and then a uniform number
    of exactly so many (of one digit: 0 may be drawn). The labels run through a fixed alphabet, A–Z and a–z, from a
    uniform start round to where it began.
    """

    order: Order = "least"

    symbols = (*string.digits, *LABELS, ":", ",")
    signs = (*LABELS, ":", ",")
    axes = ("numbers", "digits")
    question = (
        "Sort these labelled numbers in ascending order, equal ones in the order in which they stand. "
        "Write the labels alone, separated by commas without spaces."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        rows, count, width = len(sizes), int(sizes[:, 0].max()), int(sizes[:, 1].max())
        if count > len(LABELS):
            raise UsageError(f"sorting: there are labels for {len(LABELS)} numbers, not {count}")
        length = (torch.rand(rows, count, generator=generator) * sizes[:, 1:]).long() + 1
        digits = torch.randint(10, (rows, count, width), generator=generator)
        others = torch.randint(1, 10, digits.shape, generator=generator)
        digits = without_leading_zeros(digits, length, others) * (torch.arange(width) < length[..., None])
        start = torch.randint(len(LABELS), (rows, 1), generator=generator)
        labels = (start + torch.arange(count)) % len(LABELS)
        return self._problems(sizes, digits, length, labels)

    def _problems(
        self,
        sizes: Int[Tensor, "b 2"],
        digits: Int[Tensor, "b n d"],
        length: Int[Tensor, "b n"],
        labels: Int[Tensor, "b n"],
    ) -> Problems:
        """From the numbers' digits, least significant first and padded with zeros."""
        there = within(sizes[:, 0], labels.shape[1])
        ranked = _ascending(digits, there)
        answer = torch.full((len(sizes), 2 * labels.shape[1] - 1), COMMA)
        answer[:, ::2] = FIRST + labels.gather(1, ranked)
        answer_length = 2 * sizes[:, 0] - 1
        answer *= within(answer_length, answer.shape[1])
        prompt, prompt_length = self._write(digits, length, labels, there)
        return Problems(sizes, prompt, prompt_length, answer, answer_length, sizes[:, 0])

    def _write(self, digits: Tensor, length: Tensor, labels: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """The prompt: each number in a frame of its own, then all that is empty taken out."""
        rows, count, width = digits.shape
        place = torch.arange(width).expand(rows, count, -1)
        if self.order == "most":
            digits = digits.gather(2, (length[..., None] - 1 - place).clamp(min=0))
        head = torch.stack([FIRST + labels, torch.full_like(labels, COLON)], -1)
        frame = torch.cat([head, digits, torch.full_like(head[..., :1], COMMA)], -1)
        filled = torch.cat([head > 0, place < length[..., None], torch.ones_like(head[..., :1]) > 0], -1)
        filled &= there[..., None]
        filled, frame = filled.flatten(1), frame.flatten(1)
        front = filled.long().argsort(dim=1, descending=True, stable=True)
        size = filled.sum(1) - 1  # the last comma is one too many
        return frame.gather(1, front)[:, : int(size.max())] * within(size, int(size.max())), size

    def parse(self, text: str) -> Problems:
        """Numbers as they are read: most significant digit first."""
        parts = [part.split(":") for part in "".join(text.split()).split(",")]
        for part in parts:
            if (
                len(part) != 2
                or part[0] not in LABELS
                or len(part[0]) != 1
                or not (part[1].isascii() and part[1].isdigit())
            ):
                raise UsageError(f"sorting: a prompt is labelled numbers, such as A:321,B:54, not {text.strip()!r}")
        names, numbers = zip(*((name, number.lstrip("0") or "0") for name, number in parts), strict=True)
        if len(set(names)) < len(names):
            raise UsageError(f"sorting: each number has a label of its own, unlike in {text.strip()!r}")
        width = max(map(len, numbers))
        digits = torch.tensor([[[int(digit) for digit in number[::-1].ljust(width, "0")] for number in numbers]])
        length = torch.tensor([[len(number) for number in numbers]])
        labels = torch.tensor([[LABELS.index(name) for name in names]])
        return self._problems(torch.tensor([[len(names), width]]), digits, length, labels)

    def typed(self, prompt: Int[Tensor, " p"]) -> str:
        """Most significant digit first."""
        return as_read(self.vocab.decode(prompt), self.order)

    def reference(self, prompt: str) -> str:
        turn = slice(None, None, -1 if self.order == "least" else 1)
        pairs = [part.split(":") for part in prompt.split(",")]
        return ",".join(label for label, _ in sorted(pairs, key=lambda pair: int(pair[1][turn])))

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return 2 * sizes[:, 0] - 1


def _ascending(digits: Int[Tensor, "b n d"], there: Tensor) -> Int[Tensor, "b n"]:
    """The numbers' places in ascending order, those that are not there last: a stable sort by each digit in turn, from
    the least significant on, since numbers may be longer than any machine word."""
    order = torch.arange(digits.shape[1]).expand(digits.shape[:2])
    for key in (*digits.unbind(2), (~there).long()):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order
