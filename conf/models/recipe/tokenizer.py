"""The tokenizer: byte-level BPE, trained on the corpus, in which two digits are one token."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus
from chat import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TOOL_TOKENS, TURN_END

VOCABULARY = 2048
DOCUMENTS = 12000
MAX_LENGTH = 8192


def train() -> Tokenizer:
    """Train a tokenizer on the corpus. It can encode any text, because all 256 bytes are tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" ?[0-9]{1,2}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    added += [AddedToken(token, special=False, normalized=False) for token in TOOL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_tokens(corpus.sample_text("tokenizer", DOCUMENTS)), trainer)
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    return tokenizer


def _without_tokens(texts: list[str]) -> list[str]:
    for token in SPECIAL_TOKENS + TOOL_TOKENS:
        texts = [text.replace(token, " ") for text in texts]
    return texts


def save(tokenizer: Tokenizer, out: Path) -> None:
    """Write the tokenizer and its settings in the format of Hugging Face transformers."""
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in (TURN_END, END_OF_TEXT)],
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
