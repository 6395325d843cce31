"""Configurations of optimizers (from torch and pytorch-optimizer) and of learning-rate schedules."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from typing import Any, Literal

import torch
from torch import nn

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config
from lengthwise.base.ranges import Decay, Fraction, NotNegative, Positive


class Optimizer(Config):
    """Base class of optimizer configurations. The schedule scales ``rate``, the peak learning rate."""

    rate: float

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a torch optimizer of these parameters."""


def group_by_weight_decay(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return an optimizer's parameter groups: parameters with the attribute ``no_weight_decay``, such as the decay
    rates of a recurrence, form a group without weight decay."""
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for parameter in parameters:
        groups[bool(getattr(parameter, "no_weight_decay", False))]["params"].append(parameter)
    return groups if groups[1]["params"] else groups[:1]


@cache
def strip_compiler_wrappers(optimizer_class: type[torch.optim.Optimizer]) -> type:
    """Return a subclass of the optimizer without the wrappers that torch puts around methods for its compiler: they
    import the compiler, which takes two seconds in every training process."""
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: unwrap(getattr(optimizer_class, name)) for name in names}
    methods["step"] = torch.no_grad()(unwrap(optimizer_class.step))
    return type(optimizer_class.__name__, (optimizer_class,), methods)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay on all parameters (Loshchilov and Hutter 2019)."""

    rate: NotNegative = 1e-3  # the peak of the learning rate
    betas: tuple[Decay, Decay] = (0.9, 0.999)  # decays of the means of gradients and of their squares
    eps: Positive = 1e-8  # added to the root of the mean square
    weight_decay: NotNegative = 0.01  # each step subtracts rate · weight_decay · weights

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = [*parameters]
        return strip_compiler_wrappers(torch.optim.AdamW)(
            group_by_weight_decay(parameters),
            lr=self.rate,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=not any(parameter.is_complex() for parameter in parameters),  # torch fuses real numbers only
        )


@dataclass(frozen=True)
class LAMB(Optimizer):
    """Adam whose steps are scaled per layer to the norm of the weights, for large batches (You et al., 2020)."""

    rate: NotNegative = 1e-3  # the peak of the learning rate
    betas: tuple[Decay, Decay] = (0.9, 0.999)  # decays of the means of gradients and of their squares
    eps: Positive = 1e-6  # added to the root of the mean square
    weight_decay: NotNegative = 0.0  # weight_decay · weights is added to each step before it is scaled

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        from pytorch_optimizer import Lamb  # here because it is slow to import

        # Without `adam_debias` it also divides the rate by 1 − β₁ᵗ, but only the weights' norm should set the step.
        return strip_compiler_wrappers(Lamb)(
            group_by_weight_decay(parameters),
            self.rate,
            self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            weight_decouple=False,  # part of the step that is scaled, as published
            adam_debias=True,
        )


@dataclass(frozen=True)
class Schedule(Config):
    """The learning rate over a run, as a fraction of its peak. ``warmup`` and ``cooldown`` are fractions of all steps.

    The rate rises linearly during ``warmup``, stays at its peak, and falls to ``floor`` during the last ``cooldown``.
    By default it falls during all steps after the warm-up (cosine, linear, exponential) or the last tenth of the run
    (trapezoid). With ``constant`` it does not fall.
    """

    # How the rate falls after its peak.
    shape: Literal["constant", "cosine", "linear", "exponential", "trapezoid"] = "constant"
    warmup: Fraction = 0.0  # fraction of the steps in which the rate rises linearly
    cooldown: Fraction | None = None  # fraction of the steps, at the end, in which the rate falls; none: the shape's
    floor: Fraction = 0.0  # the rate after the last step, as a fraction of the peak

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup + (self.cooldown or 0) > 1:
            raise UsageError(f"warmup and cooldown together exceed the whole run: {self.warmup} + {self.cooldown}")
        if self.shape == "exponential" and not self.floor:
            raise UsageError("an exponential decay never reaches 0: give it a floor above 0, e.g. floor=0.05")

    def factor(self, step: int, steps: int) -> float:
        """Return the learning rate at a step (from 0) of a run of ``steps`` steps, as a fraction of its peak."""
        warm = self.warmup * steps
        if step < warm:
            return (step + 1) / (warm + 1)
        if self.shape == "constant":
            return 1.0
        longest = 1 - self.warmup
        default = min(0.1, longest) if self.shape == "trapezoid" else longest
        cool = default if self.cooldown is None else self.cooldown
        start = steps * (1 - cool)
        if step < start or cool == 0:
            return 1.0
        left = (steps - step) / (steps - start)
        if self.shape == "exponential":
            return self.floor ** (1 - left)
        if self.shape == "cosine":
            left = 0.5 - 0.5 * math.cos(math.pi * left)
        return self.floor + (1 - self.floor) * left
