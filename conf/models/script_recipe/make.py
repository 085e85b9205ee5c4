"""Make the model that follows scripts: compute its weights, and write it beside the tokenizer of the demo model.

Nothing is trained and nothing is downloaded. It takes some seconds. The folder has 107 MB, nearly all of it the table
of positions, so it is made where it is needed and is not part of the repository.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from chat import ADDED_TOKENS, CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START
from weights import POSITIONS, Weights, config

DEMO = Path(__file__).resolve().parents[1] / "baton-demo"


def extended(tokenizer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int], int]:
    """The tokenizer with the markers behind its other tokens, the ids of all markers, and the number of ids.

    The ids are given here, because the library counts from the number of tokens, which may be an id that is taken.
    """
    known = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    first = max(*known.values(), *tokenizer["model"]["vocab"].values()) + 1
    markers = {name: first + number for number, name in enumerate(ADDED_TOKENS)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [{"id": token_id, "content": name, **plain} for name, token_id in markers.items()]
    ids = markers | {name: known[name] for name in (TURN_START, TURN_END, END_OF_TEXT)}
    return tokenizer | {"added_tokens": [*tokenizer["added_tokens"], *added]}, ids, first + len(markers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the model; it is replaced at the end")
    out: Path = parser.parse_args().out
    made = out.with_name(out.name + ".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    tokenizer, ids, num_tokens = extended(json.loads((DEMO / "tokenizer.json").read_text()))
    (made / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")
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
