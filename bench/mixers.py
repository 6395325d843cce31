"""Milliseconds per training step, forward and backward, of a transformer of two layers of width 64 with each mixer: 32
rows of 40 and of 256 positions, plain runner, one thread. ``attention`` is softmax attention at the same sizes. Models
of torch's own recurrent layers, ``TorchLSTM`` and ``TorchGRU``, are measured for comparison.
"""

import torch
from common import QUICK, measure_seconds, print_result

from lengthwise.api import catalog
from lengthwise.base.types import Inputs, Vocab
from lengthwise.models import Model, ModelSpec
from lengthwise.models.torch_recurrent import TorchGRU, TorchLSTM
from lengthwise.models.transformer import Transformer
from lengthwise.runners.plain import Plain

ROWS, LENGTHS, REPEATS = (2, (5, 9), 1) if QUICK else (32, (40, 256), 5)
VOCAB = Vocab(tuple("01"))


def measure_step_ms(spec: ModelSpec, length: int) -> float:
    """Return the processor time of the fastest of several steps on one thread, in milliseconds."""
    torch.manual_seed(0)
    model = spec.build(VOCAB, VOCAB, causal=True)
    assert isinstance(model, Model)
    position = torch.arange(length).expand(ROWS, -1)
    tokens = torch.randint(2, (ROWS, length))
    inputs = Inputs(tokens, position, position + 1, torch.ones(ROWS, length, dtype=torch.bool))

    def step() -> None:
        logits = Plain(model).last(inputs, torch.ones(ROWS, dtype=torch.long), inputs.padding_mask)
        torch.nn.functional.cross_entropy(logits, tokens.flatten()).backward()

    return round(1000 * min(measure_seconds(step) for _ in range(REPEATS + 1)), 1)


def main() -> None:
    torch.set_num_threads(1)
    specs: dict[str, ModelSpec] = {
        name: Transformer(width=64, layers=2, heads=4, mlp=2, mixer=mixer())  # type: ignore[arg-type]
        for name, mixer in catalog.list_parts()["mixers"].items()
    }
    specs |= {"TorchLSTM": TorchLSTM(), "TorchGRU": TorchGRU()}
    print_result("mixers", ms={name: {n: measure_step_ms(spec, n) for n in LENGTHS} for name, spec in specs.items()})


if __name__ == "__main__":
    main()
