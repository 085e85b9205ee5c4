"""The quick tokenizer and renderer against those that they stand for."""

import asyncio
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers import BaseRenderer, ChatParams, TokenizeParams, renderer_from_config
from vllm.tokenizers.hf import get_cached_tokenizer, maybe_make_thread_pool

from api.frontend import fast_tokenizer
from api.frontend.fast_tokenizer import MANY_CHARS, MANY_IDS, SHORT_CHARS, ids_only, tokenize_faster

DEMO_MODEL = Path(__file__).parents[4] / "conf/models/baton-demo"
ORIGINAL = get_cached_tokenizer(AutoTokenizer.from_pretrained(DEMO_MODEL))
QUICK = ids_only(get_cached_tokenizer(AutoTokenizer.from_pretrained(DEMO_MODEL)))

pieces = st.sampled_from([*ORIGINAL.all_special_tokens, " ", "\n", "the code of Tosk is 9", "né", "日本", "🙂", "<|"])
texts = st.lists(pieces | st.text(max_size=20), max_size=20).map("".join)
limits = st.one_of(st.none(), st.integers(1, 30))


@given(texts, st.booleans(), limits)
def test_ids_are_those_of_the_tokenizer_itself(text: str, add_special_tokens: bool, limit: int | None) -> None:
    options = {"add_special_tokens": add_special_tokens, "truncation": limit is not None, "max_length": limit}
    assert QUICK(text, **options)["input_ids"] == ORIGINAL(text, **options)["input_ids"]


@given(st.lists(st.integers(0, len(ORIGINAL) + 9), min_size=1, max_size=50), st.booleans())
@settings(max_examples=20)
def test_text_of_many_ids_is_that_of_the_tokenizer_itself(ids: list[int], skip_special_tokens: bool) -> None:
    many = ids * (1 + MANY_IDS // len(ids))
    told = QUICK.decode(many, skip_special_tokens=skip_special_tokens)
    assert told == ORIGINAL.decode(many, skip_special_tokens=skip_special_tokens)


def test_text_of_many_ids_is_made_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where vLLM has put the tokenizer in front of a pool of copies, as its renderer does."""
    quick = ids_only(maybe_make_thread_pool(get_cached_tokenizer(AutoTokenizer.from_pretrained(DEMO_MODEL))))
    many, few = [7] * (MANY_IDS + 1), [[7] * 3] * (MANY_IDS + 1)
    told = ORIGINAL.decode(many)
    decoded: list[int] = []
    plain = PreTrainedTokenizerFast._decode

    def noted(tokenizer: Any, token_ids: Any, **options: Any) -> Any:
        decoded.append(len(token_ids))
        return plain(tokenizer, token_ids, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "_decode", noted)
    assert quick.decode(many) == told and decoded == []
    assert len(quick.decode(few)) == len(few)


@pytest.mark.parametrize("truncation_side", ["left", "right"])
def test_long_text_is_cut_on_the_side_of_the_tokenizer(truncation_side: str) -> None:
    original, quick = deepcopy(ORIGINAL), deepcopy(QUICK)
    original.truncation_side = quick.truncation_side = truncation_side
    text, options = "one two three four five six seven", {"truncation": True, "max_length": 5}
    assert quick(text, **options)["input_ids"] == original(text, **options)["input_ids"]


def test_text_after_one_that_was_cut_is_whole() -> None:
    QUICK("one two three four five six seven", truncation=True, max_length=2)
    text = "one two three four five six seven eight"
    assert QUICK(text)["input_ids"] == ORIGINAL(text)["input_ids"]


@pytest.mark.parametrize(
    ("text", "options"), [("with offsets", {"return_offsets_mapping": True}), (["several", "texts"], {}), ("", {})]
)
def test_all_else_is_what_the_tokenizer_gives(text: str | list[str], options: dict[str, Any]) -> None:
    assert dict(QUICK(text, return_attention_mask=True, **options)) == dict(ORIGINAL(text, **options))


@pytest.fixture(scope="module")
def renderers() -> tuple[BaseRenderer[Any], BaseRenderer[Any]]:
    """The quick one and the one that it was."""
    config = EngineArgs(str(DEMO_MODEL), max_model_len=4096, dtype="bfloat16").create_engine_config()
    quick, original = renderer_from_config(config), renderer_from_config(config)
    tokenize_faster(quick)
    return quick, original


async def ids_of(renderer: BaseRenderer[Any], messages: list[Any], **options: Any) -> list[int]:
    params = ChatParams(chat_template_kwargs={"add_generation_prompt": True, **options})
    _, prompt = await renderer.render_messages_async(messages, params)
    tokens: Any = await renderer.tokenize_prompt_async(prompt, TokenizeParams(max_total_tokens=4096))
    return tokens["prompt_token_ids"]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("short", {}),
        ("long " * (SHORT_CHARS // 4), {}),
        ([{"type": "text", "text": "in parts"}], {}),
        ("with tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
    ],
    ids=["short", "long", "parts", "tools"],
)
async def test_chat_is_rendered_as_before(
    renderers: tuple[BaseRenderer[Any], BaseRenderer[Any]], content: str | list[dict[str, str]], options: dict[str, Any]
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    quick, original = renderers
    assert await ids_of(quick, messages, **options) == await ids_of(original, messages, **options)


async def test_short_chat_is_rendered_without_a_thread(
    renderers: tuple[BaseRenderer[Any], BaseRenderer[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, _ = renderers
    monkeypatch.setattr(quick._executor, "submit", lambda *_: pytest.fail("a thread was used"))
    assert await ids_of(quick, [{"role": "user", "content": "short"}])


async def test_ordinary_prompts_do_not_wait_for_very_long_ones(
    renderers: tuple[BaseRenderer[Any], BaseRenderer[Any]],
) -> None:
    quick, original = renderers
    may_go_on, params = threading.Event(), TokenizeParams(max_total_tokens=1 << 20)
    held = fast_tokenizer._MANY.submit(may_go_on.wait, 60)
    texts = [{"prompt": "word " * (number // 5)} for number in (2 * SHORT_CHARS, MANY_CHARS + 5)]
    ordinary, long = (asyncio.ensure_future(quick.tokenize_prompt_async(text, params)) for text in texts)
    try:
        told: list[Any] = [await asyncio.wait_for(ordinary, 30)]
        assert not long.done()
    finally:
        may_go_on.set()
    told.append(await asyncio.wait_for(long, 30))
    expected: list[Any] = [await original.tokenize_prompt_async(text, params) for text in texts]
    assert [one["prompt_token_ids"] for one in told] == [one["prompt_token_ids"] for one in expected]
    assert held.result()


def test_tokenizer_of_another_kind_stays_as_it_is(renderers: tuple[BaseRenderer[Any], BaseRenderer[Any]]) -> None:
    other = deepcopy(ORIGINAL)
    other.__class__ = type("Other", (type(ORIGINAL),), {"_encode_plus": lambda *_, **__: None})
    renderer = renderers[1]
    before, renderer.tokenizer = renderer.tokenizer, other
    tokenize_faster(renderer)
    assert renderer.tokenizer is other
    renderer.tokenizer = before
