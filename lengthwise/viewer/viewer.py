"""The viewer page: type a problem, and see the model's output after each loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lengthwise.base.types import UsageError
from lengthwise.runs.run import Weights
from lengthwise.viewer.document import build_document, escape, join_scripts
from lengthwise.viewer.models import export_model
from lengthwise.viewer.offered import collect_examples

NETWORK = "tensors", "tasks", "layouts", "network", "timed", "trace", "rasp"  # scripts that compute
SCRIPTS = *NETWORK, "dom", "draw", "panel", "viewer"


def viewer_page(models: Sequence[Weights]) -> str:
    """Return the viewer page of these models, as HTML. Raises UsageError if ``js`` does not implement one of them, or
    if two share a name."""
    if len({model.name for model in models}) < len(models):
        raise UsageError("several models have the same name: name each once")
    data = {"models": [model_data(model) for model in models]}
    names = " and ".join(model.name for model in models)
    body = f"""<a class="skip" href="#thinking">to the problem</a>
<h1>{escape(names)}: loop by loop</h1>
<main id="thinking" data-viewer="models"></main>
<p>The model itself runs in this page: its weights are in the file, and nothing is sent anywhere. Type a problem and
see what it would answer after every loop, how sure it is, where its heads look, and where it would stop.</p>
<noscript><p>This page computes with JavaScript, which is switched off here.</p></noscript>"""
    return build_document(f"{names}: loop by loop", body, join_scripts(*SCRIPTS), {"models": data})


def model_data(model: Weights, tries: int | None = None) -> dict[str, Any]:
    """Return the data of one model for the viewer; ``tries`` is the length of the search for failures (see
    ``offered``)."""
    return export_model(model) | collect_examples(model, tries)
