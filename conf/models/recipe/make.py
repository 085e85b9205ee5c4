"""Make the demo model: train its tokenizer and its weights, measure it, and write the model card.

The training texts come from corpus.py with fixed seeds. Nothing is downloaded.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

import card
import evaluate
import tokenizer as tokenizers
import train
from chat import END_OF_TEXT, TURN_END

TEMPERATURE = 0.3
"""Of requests that name none. Higher gives wrong answers to simple questions; lower gives the same answer each time."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the model; it is replaced at the end")
    parser.add_argument("--quick", action="store_true", help="measure a quarter of the prompts only")
    return parser.parse_args()


def save(model: Qwen3ForCausalLM, out: Path) -> None:
    """Write the config, the weights in bfloat16 and the generation settings."""
    model.to(torch.bfloat16)
    ends = [model.config.eos_token_id, model.config.pad_token_id]
    model.generation_config.eos_token_id = ends
    model.generation_config.do_sample = True
    model.generation_config.temperature = TEMPERATURE
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


def replace(made: Path, out: Path) -> None:
    """Put the new folder in the place of the old one by renaming."""
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    made.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    options = arguments()
    made = options.out.with_name(options.out.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    started = time.monotonic()
    tokenizer = tokenizers.train()
    tokenizers.save(tokenizer, made)
    print(f"tokenizer with {tokenizer.get_vocab_size()} tokens, ends {TURN_END} {END_OF_TEXT}", flush=True)
    save(train.train(tokenizer), made)
    minutes = (time.monotonic() - started) / 60
    results = evaluate.measure(made, quick=options.quick)
    (made / "README.md").write_text(card.text(made, results, minutes, sum(stage.steps for stage in train.STAGES)))
    replace(made, options.out)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
