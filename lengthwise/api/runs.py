"""A run with its scores and figures, as the Python interface returns it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lengthwise.base.formatting import duration_text, format_html_table, format_listing
from lengthwise.base.results import Score
from lengthwise.base.score_rows import latest_rows, share_text, size_text
from lengthwise.report.scored import Scores
from lengthwise.runs import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run(run.Run):
    """A run: its folder, recipe, weights, checkpoint, scores and figures."""

    @property
    def scores(self) -> Scores:
        """The saved scores, one per size, problems and rule (see ``latest_rows``); empty before an evaluation."""
        names = [field.name for field in fields(Score)]
        rows: list[dict[str, Any]] = [
            {"whole_row": None} | row | {"sizes": tuple(row["sizes"])} for row in latest_rows(self.rows("scores"))
        ]
        return Scores([Score(**{name: row[name] for name in names if name in row}) for row in rows], self.outline)

    def plot(self, title: str | None = None) -> Figure:
        """Plot exact match against length or, before an evaluation, the loss against steps. Raises UsageError if there
        is neither."""
        if self.rows("scores"):
            return self.scores.plot(title)
        from lengthwise.report.loss_figure import loss_figure  # late: matplotlib is slow to import

        return loss_figure([self])

    def _repr_html_(self) -> str:
        return format_html_table(repr(self), self._facts())

    def __str__(self) -> str:
        return format_listing(repr(self), self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        about, scores, own = self.about(), self.scores, self.recipe.stopping.name
        rule = own if own in scores.rules else next(iter(scores.rules), own)
        ended = f"trained in {duration_text(about['wall_s'])}" if about else "training has not ended"
        measured = [one for one in scores if (one.problems, one.stopping) == ("uniform", rule)]
        shares = [f"{size_text(one.sizes)}: {share_text(one.exact, 3)}" for one in measured]
        what = "exact match" if rule == own else f"exact match, {rule}"
        return [("recipe", self.recipe.name), ("seed", str(self.recipe.seed)), ("training", ended),
                (what, ", ".join(shares) or "not measured yet")]  # fmt: skip
