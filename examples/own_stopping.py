"""A custom stopping rule: stop as soon as the model is confident."""

import math
from dataclasses import dataclass
from typing import Annotated

import lengthwise as lw


@dataclass(frozen=True)
class Confident(lw.Stopping):
    """Stop at the first loop whose mean probability per answer token is ``threshold`` or more, or at the limit."""

    threshold: Annotated[float, lw.Range(0, 1, "open")] = 0.99
    extra: Annotated[int, lw.Range(0)] = 20  # loops allowed beyond the planned ones

    def limit(self, planned):  # (rows) → (rows): the largest number of loops
        return planned + self.extra

    def done(self, trace, planned):  # → (rows): True where the row stops after the last loop of the trace
        return trace.confidence[-1] >= math.log(self.threshold)


if __name__ == "__main__":
    for rule in (lw.Oracle(), Confident(), Confident(threshold=0.999)):
        scores = lw.evaluate("looped-binary-sum", [10, 20, 30], samples=200, stopping=rule)
        shown = (f"{score.sizes[0]}: {score.exact:.2f} after {score.loops:.1f} loops" for score in scores)
        print(f"{rule.name:18}", *shown, sep="   ")
