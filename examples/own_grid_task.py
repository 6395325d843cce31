"""A custom task on grids: which cells does water from S reach?"""

from dataclasses import dataclass

import torch

import lengthwise as lw


@dataclass(frozen=True)
class Flood(lw.SquareGridTask):  # an answer has a symbol for each symbol of its prompt: lw.Grid writes it
    """Mark with o all cells that water from S reaches, S included; # is a wall, . is free, and / ends a line."""

    symbols = ("#", ".", "S", "o")  # a symbol's id is its index here
    reads, writes = symbols[:3], ("#", ".", "o")

    def side(self, size):  # lines and columns of a grid of this size
        return size

    def sample(self, sizes, generator):  # one problem for each row of sizes, without a Python loop over rows
        def draw(side, count):
            free = torch.rand(count, side, side, generator=generator) < 0.65
            source = torch.randint(side, (2, count), generator=generator)
            return self.from_grids(free.long().index_put((torch.arange(count), *source), torch.tensor(2)))

        return self.draw_by_size(sizes, draw)

    def from_grids(self, grid):  # ids (rows × side × side) → problems with answers and T(n)
        wet, rounds = grid == 2, torch.ones(len(grid), dtype=torch.long)
        for _ in range(grid[0].numel()):
            pad = torch.nn.functional.pad(wet, (1, 1, 1, 1))
            new = (pad[:, 2:, 1:-1] | pad[:, :-2, 1:-1] | pad[:, 1:-1, 2:] | pad[:, 1:-1, :-2]) & (grid != 0) & ~wet
            wet, rounds = wet | new, rounds + new.flatten(1).any(1)
        answer, length = torch.where(wet, 3, grid).flatten(1), torch.full_like(rounds, grid[0].numel())
        return lw.Problems(length[:, None] // grid.shape[1], grid.flatten(1), length, answer, length, rounds)

    def parse(self, text):  # one problem, from typed text
        lines = text.replace("/", " ").split()
        if {*map(len, lines)} != {len(lines)} or {*"".join(lines)} - {*self.reads} or text.count("S") != 1:
            raise lw.UsageError(f"{self.name}: expected a square of # and . with one S, and / between the lines")
        return self.from_grids(self.vocab.encode("".join(lines)).long().view(1, len(lines), -1))

    def reference(self, prompt):  # the simplest algorithm, on text; `lengthwise check` compares `sample` with it
        side = round(len(prompt) ** 0.5)
        lines = [prompt[i : i + side].replace("S", "o") for i in range(0, len(prompt), side)]
        for _ in 2 * prompt:  # water spreads in each line; then lines become columns
            wet = [line.replace("o.", "oo").replace(".o", "oo") for line in lines]
            lines = ["".join(column) for column in zip(*wet, strict=True)]
        return "".join(lines)


def looped_flood() -> lw.Recipe:
    """Floods on grids of 3 × 3 to 8 × 8 cells, by a looped convolution."""
    changes = "name=looped-flood lengths=Uniform(top=8,bottom=3) families=0 steps=600"
    return lw.find("looped-maze", *changes.split()).change(task=Flood())


if __name__ == "__main__":
    run = lw.train(looped_flood())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [8, 12, 16], samples=200)))
