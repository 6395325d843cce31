"""Validation of checkpoints, and messages about settings that changed since one was written.

A checkpoint may come from a stranger, and optimizers compute on its tensors without checking their shapes, so it must
have exactly the form that the same recipe writes.
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


def validate_state(state: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the fault, unless a checkpoint has the form of ``known``, one of the same recipe:
    tensors of equal shapes and types, and numbers in their ranges."""
    for name in ("step", "passed", "diverged"):
        validate(Whole, state.get(name, None if name == "step" else 0), name)
    validate(Count, state.get("parts", 1), "parts")
    if not isinstance(state.get("surroundings", {}), dict) or not isinstance(state.get("resumed", []), list):
        raise ValueError("surroundings or resumed has a wrong type")
    for name in ("wall_s", "cpu_s"):
        validate(NotNegative, _require_dict(state, "spent").get(name), name)
    _check_tensors(_require_dict(state, "model"), known["model"], "model")
    if (state.get("average") is None) != (known["average"] is None):
        raise ValueError("its moving average")
    if known["average"] is not None:
        _check_tensors(_require_dict(state, "average"), known["average"], "average")
    for name, value in _require_dict(state, "sums").items():
        like = known["sums"].get(name, torch.zeros(()))  # not logged at every step
        if not _is_same(value, like):
            raise ValueError(f"sums: {name}")
    best = _require_dict(state, "best")
    validate(Whole, best.get("step"), "best step")
    if type(best.get("merit")) is not float:
        raise ValueError("best merit")
    if _require_dict(best, "weights"):
        _check_tensors(best["weights"], known["model"], "best")
    _check_optimizer(_require_dict(state, "optimizer"), known["optimizer"])


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state after ``validate_state``. Its settings come from the recipe, not from the
    checkpoint."""
    groups = optimizer.state_dict()["param_groups"]
    for group, found in zip(groups, state["param_groups"], strict=True):
        group |= {"step": found["step"]} if "step" in found else {}
    kept = tree_map_only(Tensor, lambda own: own.clone(memory_format=torch.contiguous_format), state["state"])
    optimizer.load_state_dict({"state": kept, "param_groups": groups})


def share_checkpoint(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint as the first of several processes sends it to the others: on the CPU, and without the best
    weights, which only the first keeps."""
    return tree_map_only(Tensor, Tensor.cpu, {**state, "best": {**state["best"], "weights": {}}})


def _require_dict(tree: Mapping[str, Any], name: str) -> dict[Any, Any]:
    if not isinstance(tree.get(name), dict):
        raise ValueError(f"{name} is missing")
    return tree[name]


def _check_tensors(found: Mapping[str, Any], known: Mapping[str, Tensor], where: str) -> None:
    if found.keys() != known.keys():
        raise ValueError(f"{where}: its tensors have other names")
    for name, tensor in known.items():
        if not _is_same(found[name], tensor):
            raise ValueError(f"{where}: {name} must be a tensor of shape {tuple(tensor.shape)} and type {tensor.dtype}")


def _check_optimizer(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Validate an optimizer's state of each parameter: numbers, and tensors of the parameter's shape."""
    groups, kept = found.get("param_groups"), _require_dict(found, "state")
    if not isinstance(groups, list) or len(groups) != len(known["param_groups"]):
        raise ValueError("the optimizer's groups")
    for group in groups:
        if not isinstance(group, dict):
            raise ValueError("the optimizer's groups")
        validate(Whole, group.get("step", 0), "the optimizer's step")
    for number, part in kept.items():
        like = known["state"].get(number)
        if like is None or not isinstance(part, dict) or part.keys() != like.keys():
            raise ValueError(f"the optimizer's state of parameter {number} is wrong")
        for name, value in part.items():
            if not _is_same(value, like[name]):
                raise ValueError(f"the optimizer's {name} of parameter {number} is wrong")


def _is_same(found: Any, known: Any) -> bool:
    if not isinstance(known, Tensor):
        return type(found) is type(known)
    # Checkpoints are always loaded onto the CPU.
    plain = type(found) is Tensor and found.layout == torch.strided and found.device.type == "cpu"
    return plain and (found.shape, found.dtype) == (known.shape, known.dtype)


# Settings in checkpoints of versions that did not record them.
DEFAULT_SURROUNDINGS = {"processes": 1, "stacked": 1, "matmul": "fp32", "compiled": False}


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that changed since the checkpoint, with their earlier values."""
    return {name: remove_controls(str(before[name])) for name in now if str(before[name]) != str(now[name])}


def describe_changes(changes: Mapping[str, str], now: Mapping[str, Any], step: int) -> str:
    """Describe changed settings in one line; empty if there are none."""
    what = ", ".join(f"{name} {now[name]} instead of {value}" for name, value in changes.items())
    return f"continues from step {step} with {what}: the last bits of its weights may differ" if what else ""


def describe_lost_rows(rows: Sequence[Mapping[str, Any]], due: int) -> str:
    """Return a line if a log lacks some of the ``due`` loss rows; else an empty one."""
    logged = sum("rate" in row for row in rows)
    return f"metrics.jsonl has {logged} of {due} rows: the others are lost" if logged < due else ""
