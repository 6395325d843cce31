"""Changes to a model after which a faster runner must not be chosen for it."""

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrizations, parametrize

from lengthwise.models.transformer import InputInjection, TransformerModel
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import MLP, Block
from lengthwise.nn.position import Encoding
from lengthwise.nn.window import LocalEncoding


class DoubledBlock(Block):
    """A block that adds twice its MLP's output."""

    def forward(self, x, context, injection=None, cache=None):
        middle = x + self.mixer(self.norm_mixer(x), context, cache)
        return middle + 2 * self.mlp(self.norm_mlp(middle))


class NegatedAttention(SoftmaxAttention):
    def attend(self, qkv, context, cache=None):
        return -super().attend(qkv, context, cache)


class NegatedMLP(MLP):
    def forward(self, x):
        return -super().forward(x)


class NegatedModel(TransformerModel):
    def advance(self, state, context):
        return -super().advance(state, context)


def set_name(name, change):
    change.__name__ = name
    return change


def replace_class(kind):
    """Return a change that replaces the class of the model's modules by its subclass ``kind``."""

    def change(model, patch):
        for module in model.modules():
            if type(module) in kind.__mro__[1:2]:
                module.__class__ = kind

    return set_name(kind.__name__, change)


def register_hook(register):
    """Return a change that registers a hook, by the function or method called ``register``, on all modules or on
    one."""

    def change(model, patch):
        registrar = hooks if hasattr(hooks, register) else model.blocks[0].mlp.narrow
        handle = getattr(registrar, register)(lambda *_: None)
        patch.callback(handle.remove)

    return set_name(register, change)


def wrap_method(owner, name):
    """Return a change that wraps a method of a class, or of the submodule at the path ``owner``."""

    def change(model, patch):
        part = model.get_submodule(owner) if isinstance(owner, str) else owner
        before = getattr(part, name)
        setattr(part, name, lambda *given, **named: before(*given, **named))
        patch.callback(lambda: setattr(part, name, before))

    return set_name(f"{getattr(owner, '__name__', owner)}.{name}", change)


def add_parametrization(model, patch):
    parametrize.register_parametrization(model.blocks[0].mlp.widen, "weight", nn.Tanh())


def add_weight_norm(model, patch):
    parametrizations.weight_norm(model.blocks[0].mixer.out)


def replace_activation(model, patch):
    model.blocks[0].mlp.act = nn.SiLU()


def replace_readout(model, patch):
    model.readout = nn.Sequential(nn.Tanh(), model.readout)


def turn_on_autocast(model, patch):
    patch.enter_context(torch.autocast("cpu", torch.bfloat16))


CHANGES = [
    *map(replace_class, [DoubledBlock, NegatedAttention, NegatedMLP, NegatedModel]),
    *map(register_hook, ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
                  "register_full_backward_pre_hook", "register_module_forward_hook",
                  "register_module_forward_pre_hook", "register_module_full_backward_hook",
                  "register_module_full_backward_pre_hook"]),
    *(wrap_method(*part) for part in [(Block, "forward"), (SoftmaxAttention, "forward"), (SoftmaxAttention, "attend"),
                                  (MLP, "forward"), (nn.LayerNorm, "forward"), (TransformerModel, "advance"),
                                  (TransformerModel, "embed"), (TransformerModel, "init_state"),
                                  (InputInjection, "forward"), (LocalEncoding, "attention_bias"), (Encoding, "keys"),
                                  ("blocks.0", "forward"), ("blocks.0.mixer", "attend"), ("norm", "forward"),
                                  ("", "advance"), ("", "read"), ("", "embed_tokens"),
                                  ("encodings.0", "attention_bias")]),
    add_parametrization, add_weight_norm, replace_activation, replace_readout, turn_on_autocast,
    set_name("half", lambda model, patch: model.half()), set_name("bfloat", lambda model, patch: model.bfloat16()),
]  # fmt: skip
