"""The Python interface, gathered: what ``import lengthwise as lw`` offers, by the names in its ``__all__``."""

from __future__ import annotations

from lengthwise.base.ranges import Range
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Loss, Problems, Score, Trace, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.depth import Runner
from lengthwise.depth.plain import unroll
from lengthwise.evaluation.solver import Answer, Solver, load
from lengthwise.fast import plain
from lengthwise.interface import Listing, compare, evaluate, families, find, models, recipes, style, tasks, train
from lengthwise.models import Model, ModelSpec
from lengthwise.models.lstm import LSTM
from lengthwise.models.retran import ReTran
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.mixer import Mixer, MixerSpec
from lengthwise.nn.position import ALiBi, Encoding, Learned, NoPE, Position, RoPE
from lengthwise.nn.sight import Sight
from lengthwise.nn.window import Local
from lengthwise.objectives import Objective
from lengthwise.objectives.every import Every
from lengthwise.objectives.final import Final
from lengthwise.objectives.progressive import Progressive
from lengthwise.recipe.layout import FullOutput, Layout, NextToken, Pairs
from lengthwise.recipe.lengths import Curriculum, Lengths, Mastery, Natural, Uniform
from lengthwise.recipe.loops import Constant, ExtraLoops, Loops, PerRound
from lengthwise.recipe.optim import LAMB, AdamW, Optimizer, Schedule
from lengthwise.recipe.recipe import Recipe, Watch
from lengthwise.recipe.source import Finite, Fresh
from lengthwise.recipe.stopping import After, Converged, MaxConfidence, Oracle, Stopping
from lengthwise.report.scored import Comparison, Scores
from lengthwise.run import Run, Weights
from lengthwise.studies import Panel, Study
from lengthwise.tasks import Listed, Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.family import Family
from lengthwise.tasks.parity import Parity
