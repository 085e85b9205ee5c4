"""Make the model that follows scripts: compute its weights, and write it beside the tokenizer of the demo model.

Nothing is trained and nothing is downloaded. It takes some seconds. The folder has 107 MB, nearly all of it the table
of positions, so it is made where it is needed and is not part of the repository.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer

from chat import ADDED_TOKENS, CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START
from weights import POSITIONS, Weights, config

DEMO = Path(__file__).resolve().parents[1] / "baton-demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the model; it is replaced at the end")
    out: Path = parser.parse_args().out
    made = out.with_name(out.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_TOKENS])
    ids = {name: tokenizer.token_to_id(name) for name in (*ADDED_TOKENS, TURN_START, TURN_END, END_OF_TEXT)}
    num_tokens = max(tokenizer.get_vocab().values()) + 1
    tokenizer.save(str(made / "tokenizer.json"))
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    settings |= {"chat_template": CHAT_TEMPLATE, "model_max_length": POSITIONS}
    (made / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    end, padding = ids[TURN_END], ids[END_OF_TEXT]
    (made / "config.json").write_text(json.dumps(config(num_tokens, end, padding), indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": [end, padding], "pad_token_id": padding}
    (made / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in Weights(ids, num_tokens).state.items()}
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    (made / "model.safetensors").chmod(0o644)
    shutil.rmtree(out, ignore_errors=True)
    made.rename(out)
    print(f"made {out}: {num_tokens} tokens, {POSITIONS} positions")


if __name__ == "__main__":
    main()
