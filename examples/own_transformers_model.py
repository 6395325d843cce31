"""Models of the library transformers: a small Llama on parity, and a small BERT that sees the whole row."""

from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import lengthwise as lw

MODEL_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def build_llama(symbol_count):
    return LlamaForCausalLM(LlamaConfig(vocab_size=symbol_count, **MODEL_SIZES))


def build_bert(symbol_count):
    return BertForMaskedLM(BertConfig(vocab_size=symbol_count, max_position_embeddings=64, **MODEL_SIZES))


if __name__ == "__main__":
    task = lw.Parity()
    for build, layout in ((build_llama, lw.NextToken()), (build_bert, lw.FullOutput(causal=False))):
        reads, writes = layout.vocabs(task)  # rows hold = and $ besides the task's symbols
        run = lw.train(build(len(reads)), "steps=300", task=task, layout=layout, lengths=8)
        print(lw.evaluate(run, [8, 12]))
