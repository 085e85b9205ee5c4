"""The right answer to a word list (tests/drills/word_lists.py) depends on each KV block of its prompt: the demo model
gives another text when one block is wrong. No engine takes part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from cluster.repository import REPO_ROOT
from tests.drills.participants import BYSTANDER, BYSTANDER_TOKENS
from tests.drills.word_lists import LONGEST, SURE_TOKENS, WORDS, WordList, length_of, word_list

MODEL = REPO_ROOT / "conf/models/baton-demo"
KV_BLOCK = 32
LENGTHS = (60, 150, 300, LONGEST)
SURE_NATS = 0.4
"""How far the right word must be ahead of every other: numerics change it by a tenth."""
NOTICED_NATS = 5.0
"""How far another word must be ahead of the right one, somewhere in the text, when a block is wrong."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values."""


@dataclass
class Demo:
    """The demo model in float32."""

    model: torch.nn.Module
    tokenize: Callable[[str], list[int]]

    def prompt_kv(self, words: WordList) -> Layers:
        cache = DynamicCache()
        with torch.no_grad():
            self.model(torch.tensor([self.tokenize(words.prompt)]), past_key_values=cache)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def leads(self, words: WordList, num_tokens: int, prompts: Layers) -> Tensor:
        """How far, in nats, each right token of the answer is ahead of every other, read from each of these KVs of the
        prompt; below 0 it is not what the model says. Without the first token, which is the prefill engine's.
        """
        num_prompts, _, length, _ = prompts[0][0].shape
        cache = DynamicCache()
        for number, (keys, values) in enumerate(prompts):
            cache.update(keys, values, number)
        answer = torch.tensor([self.tokenize(words.answer(num_tokens))]).expand(num_prompts, -1)
        said, right = answer[:, :-1], answer[:, 1:, None]
        positions = torch.arange(length, length + said.shape[1])[None].expand(num_prompts, -1)
        with torch.no_grad():
            logits = self.model(said, past_key_values=cache, position_ids=positions).logits
        others = logits.scatter(2, right, float("-inf")).amax(2)
        return logits.gather(2, right)[..., 0] - others


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two of them burn both cores with waiting for each other, where other tests run beside
    yield Demo(model, lambda text: tokenizer(text, add_special_tokens=False).input_ids)
    torch.set_num_threads(num_threads)


def test_each_word_is_one_token_and_is_there_once(demo: Demo) -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(len(demo.tokenize(f" {word}")) == 1 for word in WORDS)
    for length in LENGTHS:
        assert len(demo.tokenize(word_list(1, length).prompt)) == length


def test_seeds_differ() -> None:
    assert len({word_list(seed, 60).prompt for seed in range(len(WORDS))}) == len(WORDS)


@pytest.mark.parametrize("length", LENGTHS)
def test_model_goes_on_with_the_list_from_its_beginning(demo: Demo, length: int) -> None:
    for seed in range(3):
        words = word_list(seed, length)
        least = demo.leads(words, SURE_TOKENS - length, demo.prompt_kv(words)).min()
        assert least > SURE_NATS


def test_bystander_is_right_to_its_end(demo: Demo) -> None:
    assert demo.leads(BYSTANDER, BYSTANDER_TOKENS, demo.prompt_kv(BYSTANDER)).min() > SURE_NATS


def zeroed(right: Tensor, stale: Tensor) -> Tensor:
    return torch.zeros_like(right)


def random(right: Tensor, stale: Tensor) -> Tensor:
    return torch.randn(right.shape, generator=torch.Generator().manual_seed(1)) * right.std()


def of_another_prompt(right: Tensor, stale: Tensor) -> Tensor:
    return stale


@pytest.mark.parametrize("wrong", [zeroed, random, of_another_prompt])
@pytest.mark.parametrize("length", LENGTHS)
def test_one_wrong_block_makes_the_text_another_one(
    demo: Demo, length: int, wrong: Callable[[Tensor, Tensor], Tensor]
) -> None:
    words = word_list(1, length)
    right, stale = demo.prompt_kv(words), demo.prompt_kv(word_list(2, length))
    blocks = [slice(begin, begin + KV_BLOCK) for begin in range(0, length, KV_BLOCK)]

    def each_block_wrong(right: Tensor, stale: Tensor) -> Tensor:
        """As many prompts as blocks."""
        prompts = right.repeat(len(blocks), 1, 1, 1)
        for number, block in enumerate(blocks):
            prompts[number, :, block] = wrong(right, stale)[0, :, block]
        return prompts

    kv = zip(right, stale, strict=True)
    prompts = [tuple(each_block_wrong(*tensors) for tensors in zip(*layer, strict=True)) for layer in kv]
    least = demo.leads(words, length, prompts).amin(1)
    assert (least < -NOTICED_NATS).all(), least


def test_right_text_is_known_to_the_token() -> None:
    words = word_list(3, 60)
    answer = words.answer(100)
    assert length_of(answer) == 100
    assert words.is_continued_by("") and words.is_continued_by(answer) and words.is_continued_by(answer[:-1])
    for wrong in (answer[1:], answer + "x", answer.replace(words.words[9], words.words[10], 1)):
        assert not words.is_continued_by(wrong)
