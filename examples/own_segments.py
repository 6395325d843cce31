"""A custom objective in segments: later segments weigh more."""

from dataclasses import dataclass

import lengthwise as lw


@dataclass(frozen=True)
class LaterSegments(lw.Segments):
    """``Segments`` whose losses are weighted from 1 / ``count`` in the first segment to 1 in the last."""

    def steps(self, runner, batch, loops, generator):
        for number, loss in enumerate(super().steps(runner, batch, loops, generator), 1):
            yield lw.Loss(loss.value * number / self.count, loss.logs)  # an optimizer step follows


def later_parity() -> lw.Recipe:
    """Parity on up to 8 bits, in segments of three loops."""
    changes = "name=later-parity objective=LaterSegments(count=4) loops=Constant(count=3) stopping=After(loops=12)"
    return lw.find(
        "looped-parity", *changes.split(), "lengths=Curriculum(top=8,every=60)", "steps=600", "watch.every=0"
    )


if __name__ == "__main__":
    run = lw.train(later_parity())
    print(*(f"{score.sizes[0]}: {score.exact:.2f}" for score in lw.evaluate(run, [8, 12])))
