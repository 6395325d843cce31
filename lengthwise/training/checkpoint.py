"""Validation of checkpoints, and messages about settings that changed since a checkpoint was written.

A checkpoint may come from a stranger, and optimizers do not check the shapes of its tensors, so it must have exactly
the form of a checkpoint that the recipe writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lengthwise.base.errors import remove_controls
from lengthwise.base.fields import validate
from lengthwise.base.ranges import Count, NotNegative, Whole


def validate_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the fault, unless a checkpoint has the form of ``expected``, a checkpoint of the same
    recipe: tensors of equal shapes and types, and numbers in their ranges."""
    for name in ("step", "passed", "diverged"):
        validate(Whole, state.get(name, None if name == "step" else 0), name)
    validate(Count, state.get("parts", 1), "parts")
    if not isinstance(state.get("surroundings", {}), dict) or not isinstance(state.get("resumed", []), list):
        raise ValueError("surroundings must be a dictionary, and resumed a list")
    for name in ("wall_s", "cpu_s"):
        validate(NotNegative, _require_dict(state, "spent").get(name), name)
    _check_tensors(_require_dict(state, "model"), expected["model"], "model")
    if (state.get("average") is None) != (expected["average"] is None):
        raise ValueError("average: present without a moving average in the recipe, or missing with one")
    if expected["average"] is not None:
        _check_tensors(_require_dict(state, "average"), expected["average"], "average")
    for name, value in _require_dict(state, "sums").items():
        like = expected["sums"].get(name, torch.zeros(()))  # not logged at every step
        if not _has_same_form(value, like):
            raise ValueError(f"sums: {name} must have the shape and type of the logged value")
    best = _require_dict(state, "best")
    validate(Whole, best.get("step"), "best step")
    if type(best.get("merit")) is not float:
        raise ValueError("best merit must be a float")
    if _require_dict(best, "weights"):
        _check_tensors(best["weights"], expected["model"], "best")
    _check_optimizer(_require_dict(state, "optimizer"), expected["optimizer"])


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's validated state. Its settings, such as the learning rate, stay those of the recipe."""
    groups = optimizer.state_dict()["param_groups"]
    for group, actual in zip(groups, state["param_groups"], strict=True):
        group |= {"step": actual["step"]} if "step" in actual else {}
    kept = tree_map_only(Tensor, lambda own: own.clone(memory_format=torch.contiguous_format), state["state"])
    optimizer.load_state_dict({"state": kept, "param_groups": groups})


def checkpoint_to_send(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint for the first of several processes to send to the others: on the CPU, and without the best
    weights, which only the first process keeps."""
    return tree_map_only(Tensor, Tensor.cpu, {**state, "best": {**state["best"], "weights": {}}})


def _require_dict(tree: Mapping[str, Any], name: str) -> dict[Any, Any]:
    if not isinstance(tree.get(name), dict):
        raise ValueError(f"{name} is missing")
    return tree[name]


def _check_tensors(actual: Mapping[str, Any], expected: Mapping[str, Tensor], kind: str) -> None:
    if actual.keys() != expected.keys():
        raise ValueError(f"{kind}: its tensors must have the names of the recipe's model")
    for name, tensor in expected.items():
        if not _has_same_form(actual[name], tensor):
            raise ValueError(f"{kind}: {name} must be a tensor of shape {tuple(tensor.shape)} and type {tensor.dtype}")


def _check_optimizer(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise ValueError unless the optimizer's state of each parameter has the expected names, shapes and types."""
    groups, kept = actual.get("param_groups"), _require_dict(actual, "state")
    if not isinstance(groups, list) or len(groups) != len(expected["param_groups"]):
        raise ValueError(f"the optimizer's param_groups must be a list of {len(expected['param_groups'])}")
    for group in groups:
        if not isinstance(group, dict):
            raise ValueError("the optimizer's param_groups must be dictionaries")
        validate(Whole, group.get("step", 0), "the optimizer's step")
    for number, part in kept.items():
        like = expected["state"].get(number)
        if like is None or not isinstance(part, dict) or part.keys() != like.keys():
            raise ValueError(f"the optimizer's state of parameter {number} has wrong names")
        for name, value in part.items():
            if not _has_same_form(value, like[name]):
                raise ValueError(f"the optimizer's {name} of parameter {number} has a wrong shape or type")


def _has_same_form(actual: Any, expected: Any) -> bool:
    if not isinstance(expected, Tensor):
        return type(actual) is type(expected)
    # Checkpoints are always loaded onto the CPU.
    plain = type(actual) is Tensor and actual.layout == torch.strided and actual.device.type == "cpu"
    return plain and (actual.shape, actual.dtype) == (expected.shape, expected.dtype)


# Settings of checkpoints written by versions that did not record them.
DEFAULT_SURROUNDINGS = {"processes": 1, "stacked": 1, "matmul": "fp32", "compiled": False}


def find_changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, str]:
    """Return the values in the checkpoint of settings that have changed since."""
    return {name: remove_controls(str(saved[name])) for name in current if str(saved[name]) != str(current[name])}


def describe_changes(changes: Mapping[str, str], current: Mapping[str, Any], step: int) -> str:
    """Describe changed settings in one line; empty if there are none."""
    what = ", ".join(f"{name} {current[name]} instead of {value}" for name, value in changes.items())
    return f"continues from step {step} with {what}: the last bits of its weights may differ" if what else ""


def describe_lost_rows(rows: Sequence[Mapping[str, Any]], expected_rows: int) -> str:
    """Return a note if a log has fewer than ``expected_rows`` loss rows; else an empty string."""
    logged = sum("rate" in row for row in rows)
    return f"metrics.jsonl has {logged} of {expected_rows} rows: the others are lost" if logged < expected_rows else ""
