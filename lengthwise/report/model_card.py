"""Model cards for the Hugging Face Hub, written from a run's files."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

from lengthwise.base.errors import remove_controls
from lengthwise.base.score_rows import (
    Row,
    Sizes,
    families_in,
    interval_notes,
    interval_text,
    share_text,
    size_text,
    trained_on,
    uniform_in,
    worst_rows,
)
from lengthwise.report import own_scores
from lengthwise.report.card import HEADINGS, card_cells, score_card
from lengthwise.runs.folder import RunFolder

PAPERS = {  # by the kind of part they introduced
    "FullOutput": "Fan et al., Looped Transformers for Length Generalization, ICLR 2025, https://arxiv.org/abs/2409.15647",
    "Abacus": "McLeish et al., Transformers Can Do Arithmetic with the Right Embeddings, 2024, https://arxiv.org/abs/2405.17399",
    "ReTran": "Attention Ain't All (ReTran), ACL 2025",
    "RoPE": "Su et al., RoFormer, 2021, https://arxiv.org/abs/2104.09864",
    "ALiBi": "Press et al., Train Short, Test Long, 2021, https://arxiv.org/abs/2108.12409",
    "NoPE": "Kazemnejad et al., The Impact of Positional Encoding on Length Generalization, 2023, https://arxiv.org/abs/2305.19466",
    "LAMB": "You et al., Large Batch Optimization for Deep Learning, 2019, https://arxiv.org/abs/1904.00962",
}


def model_card(run: RunFolder, repository: str, *, license_: str, example: str, controls: Sequence[RunFolder]) -> str:
    """Return the model card of a run's weights in ``repository``: Markdown with the Hub's metadata in front.
    ``example`` is a prompt; ``controls`` are runs to compare it with."""
    outline, rows, count = run.outline, own_scores(run), run.about().get("parameters")
    size = f"{count:,} parameters." if count else ""
    kinds = set(_part_names(run.config()))
    papers = [f"- {paper}" for kind, paper in PAPERS.items() if kind in kinds]
    table = [HEADINGS, ["---"] * len(HEADINGS), *map(card_cells, score_card([run, *controls]))] if controls else []
    text = [
        *_metadata_lines(run, rows, license_),
        f"# {outline.name}",
        "",
        f"Trained on `{outline.task}` with sizes of up to {size_text(outline.tops)}; measured beyond. {size}",
        "",
        "```sh",
        f"pip install 'lengthwise[hub]=={importlib.metadata.version('lengthwise')}'",
        f"lengthwise solve hf:{repository} '{example}'",
        f"lengthwise verify hf:{repository}",
        "```",
        "",
        "## Exact match",
        "",
        *(_score_lines(rows, outline.tops) if rows else ["Not measured."]),
        "",
        *(["## Controls", "", *(f"| {' | '.join(cells)} |" for cells in table), ""] if table else []),
        "## Training",
        "",
        *_training_lines(run),
        "",
        *(["## Papers", "", "Parts of the recipe are from:", "", *papers] if papers else []),
    ]
    return "\n".join(text) + "\n"


def _metadata_lines(run: RunFolder, rows: Sequence[Row], license_: str) -> Iterator[str]:
    """Yield the metadata that the Hub indexes."""
    yield "---"
    yield f"license: {license_}"
    yield "library_name: lengthwise"
    yield f"tags: [length-generalization, algorithmic-reasoning, {run.outline.task}]"
    uniform = uniform_in(rows)
    if uniform:
        yield "model-index:"
        yield f"- name: {run.outline.name}"
        yield "  results:"
    for size, row in sorted(uniform.items()):
        yield "  - task: {type: text-generation}"
        yield f"    dataset: {{name: '{run.outline.task}, size {size_text(size)}', type: lengthwise}}"
        yield f"    metrics: [{{type: exact_match, value: {row['exact']:.6g}}}]"
    yield "---"
    yield ""


def _score_lines(rows: Sequence[Row], tops: Sizes) -> Iterator[str]:
    """Yield a table of uniform problems and the worst family, by size."""
    uniform = uniform_in(rows)
    structured = families_in(rows)
    lowest = {tuple(row["sizes"]): row for row in worst_rows(rows)}
    yield "| size | uniform problems | worst family | |"
    yield "| ---: | ---: | ---: | --- |"
    for size in sorted({*uniform, *lowest}):
        low = lowest.get(size)
        named = f"{low['problems']}, of {len(structured[size])}" if low else ""
        mark = " (trained)" if trained_on(size, tops) else ""
        yield f"| {size_text(size)}{mark} | {_format_share(uniform.get(size))} | {_format_share(low)} | {named} |"
    yield ""
    yield "Exact match: the whole answer is right, its end included. In brackets Wilson's 95 % interval and the number"
    yield f"of fresh problems. Stopping rule: `{rows[0]['stopping']}`."
    yield from (f"Intervals: {note}." for note in interval_notes(rows))


def _format_share(row: Row | None) -> str:
    return f"{share_text(row['exact'], 3)} ({interval_text(row)}; {row['count']:,})" if row else "–"


def _training_lines(run: RunFolder) -> Iterator[str]:
    about, outline = run.about(), run.outline
    looked = ", ".join(map(str, outline.looked_at)) or "none that is known"
    yield f"Recipe `{outline.name}` (`{outline.id}`), seed {outline.seed}, {outline.steps:,} steps."
    if isinstance(parent := about.get("parent"), dict):
        name, step = (remove_controls(str(parent.get(key))) for key in ("run", "step"))
        yield f"It goes on from `{name}` after its step {step}."
    yield f"Sizes that may have chosen it: {looked}."
    if about:
        package, torch = (remove_controls(str(about.get(key, ""))) for key in ("lengthwise", "torch"))
        yield f"{about['cpu_s'] / 60:.1f} minutes of processor time; Lengthwise {package}, torch {torch}."
    yield "All of it is in `config.json`; `lengthwise train config.json` trains it again."


def _part_names(tree: Any) -> Iterator[str]:
    """Yield the names of all parts of a recipe."""
    if isinstance(tree, dict):
        yield str(tree.get("kind"))
        for value in tree.values():
            yield from _part_names(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _part_names(value)
