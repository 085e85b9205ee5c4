"""Vectors of English words, so that the classifier knows words that no example has by words that are alike.

`python -m bench.safety.word_vectors MODEL` makes the file anew from a folder with the sentence model all-MiniLM-L6-v2
(Apache-2.0; its model.safetensors has the SHA-256 below). It needs torch and transformers. The training needs only the
file, and the ingress not even that: the training folds the vectors into the weights of words.
"""

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.matrix.cells import REPO_ROOT
from bench.safety.examples import read_examples

FILE = REPO_ROOT / "conf" / "safety" / "examples" / "word-vectors.npz"
SOURCE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DIMENSIONS = 96
"""Of a vector. More know finer differences, and make the file larger: a byte per word each."""
_BATCH = 512


class WordVectors(NamedTuple):
    words: list[str]
    num_common: int
    """The first words are the model's vocabulary. The others are there because an example has them."""
    vectors: NDArray[np.float64]
    """About of length 1."""


def read_vectors(file: Path = FILE) -> WordVectors:
    with np.load(file, allow_pickle=False) as arrays:
        words = arrays["words"].tobytes().decode().split("\n")
        return WordVectors(words, int(arrays["num_common"]), arrays["vectors"] * arrays["scale"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder with model.safetensors and tokenizer.json")
    folder = parser.parse_args().model
    if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != SOURCE_SHA256:
        sys.exit("bench: this is another model")
    common, embed = _model(folder)
    words = list(dict.fromkeys([*common, *sorted({w for example in read_examples() for w in example.words})]))
    vectors = embed(words)
    vectors -= vectors[: len(common)].mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    axes = np.linalg.svd(vectors[: len(common)], full_matrices=False)[2][:DIMENSIONS]
    vectors = vectors @ axes.T
    scale = np.abs(vectors).max() / 127
    np.savez_compressed(
        FILE,
        words=np.frombuffer("\n".join(words).encode(), dtype=np.uint8),
        num_common=np.array(len(common)),
        vectors=np.rint(vectors / scale).astype(np.int8),
        scale=np.array(scale),
    )
    print(f"{len(words)} words, {FILE.stat().st_size} bytes")


def _model(folder: Path) -> tuple[list[str], Any]:
    """The whole words of the model's vocabulary, and what makes vectors of words."""
    import torch
    from transformers import AutoModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    model = AutoModel.from_pretrained(folder).eval()
    ids = tokenizer.get_vocab()
    common = [word for word in sorted(ids, key=lambda word: ids[word]) if word.isalnum() and word.isascii()]

    def embed(words: list[str]) -> NDArray[np.float64]:
        found = np.zeros((len(words), model.config.hidden_size))
        with torch.no_grad():
            for begin in range(0, len(words), _BATCH):
                batch = tokenizer(words[begin : begin + _BATCH], return_tensors="pt", padding=True)
                batch.pop("token_type_ids", None)
                states = model(**batch).last_hidden_state
                mask = batch["attention_mask"][..., None]
                found[begin : begin + _BATCH] = ((states * mask).sum(1) / mask.sum(1)).numpy()
        return found

    return common, embed


if __name__ == "__main__":
    main()
