"""Measure a demo model: greedy answers to held-out prompts, with transformers or vLLM, as a table.

Each prompt depends on a seed only. Its names and codes are held out of the training texts.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import knowledge
import recall
import tools
from chat import TURN_END, Message

Result = dict[str, Any]
Answerer = Callable[[list[str], int], list[str]]  # prompts and the most new tokens -> the answers

# Recall by size: names, filler sentences, prompts.
SIZES = ((4, 0, 100), (8, 10, 100), (16, 20, 100), (12, 60, 60), (16, 100, 40))
PLACED = 60
BATCH = 20


@dataclass(frozen=True)
class Case:
    prompt: str
    is_right: Callable[[str], bool]


class Template:
    """The model's tokenizer, for chat prompts as text and for their lengths."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)

    def chat(self, messages: list[Message], offered: list[tools.Tool] | None = None) -> str:
        return self.tokenizer.apply_chat_template(messages, tools=offered, tokenize=False, add_generation_prompt=True)

    def mean_length(self, cases: list[Case]) -> int:
        return round(sum(len(self.tokenizer.encode(case.prompt)) for case in cases) / len(cases))


def with_transformers(model: Path, template: Template) -> Answerer:
    """Answers of transformers in bfloat16, in batches padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    template.tokenizer.padding_side = "left"

    def answer(prompts: list[str], most: int) -> list[str]:
        answers: list[str] = []
        for i in range(0, len(prompts), BATCH):
            inputs = template.tokenizer(prompts[i : i + BATCH], return_tensors="pt", padding=True)
            with torch.no_grad():
                ids = network.generate(**inputs, max_new_tokens=most, do_sample=False)
            texts = template.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :])
            answers += [text.split(TURN_END)[0].replace("<|endoftext|>", "") for text in texts]
        return answers

    return answer


def with_vllm(model: Path) -> Answerer:
    """Answers of vLLM in bfloat16."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model),
        dtype="bfloat16",
        max_model_len=4096,
        enforce_eager=True,
        block_size=32,
        kv_cache_memory_bytes=64 << 20,
    )

    def answer(prompts: list[str], most: int) -> list[str]:
        sampling = SamplingParams(temperature=0.0, max_tokens=most, skip_special_tokens=False)
        found = engine.generate(prompts, sampling, use_tqdm=False)
        return [output.outputs[0].text.split(TURN_END)[0] for output in found]

    return answer


def _tells(code: str) -> Callable[[str], bool]:
    return lambda answer: recall.is_right(answer, code)


def _begins(code: str) -> Callable[[str], bool]:
    return lambda answer: answer.startswith(f" {code}") and not answer[len(code) + 1 :][:1].isdigit()


def _contains(keyword: str) -> Callable[[str], bool]:
    return lambda answer: keyword in answer


def _equals(text: str) -> Callable[[str], bool]:
    return lambda answer: answer.strip() == text


def _calls(call: tuple[str, tools.Arguments]) -> Callable[[str], bool]:
    def is_right(answer: str) -> bool:
        body = answer.strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
        try:
            made = json.loads(body)
        except json.JSONDecodeError:
            return False
        return "<tool_call>" in answer and made == {"name": call[0], "arguments": call[1]}

    return is_right


def recall_cases(template: Template, share: int) -> dict[str, list[Case]]:
    """Recall by size of the prompt, and by the place where the facts are told."""
    groups: dict[str, list[Case]] = {}
    for names, fillers, count in SIZES:
        cases = []
        for seed in range(count // share):
            placing = recall.PLACINGS[seed % len(recall.PLACINGS)]
            messages, code = recall.recall_prompt(seed, names, fillers, placing)
            cases.append(Case(template.chat(messages), _tells(code)))
        groups[f"recall, {names} names, about {template.mean_length(cases)} tokens"] = cases
    for placing in recall.PLACINGS:
        made = [recall.recall_prompt(1000 + seed, 10, 15, placing) for seed in range(PLACED // share)]
        groups[f"recall, 10 names, told: {placing}"] = [Case(template.chat(m), _tells(code)) for m, code in made]
    raw = [recall.raw_prompt(seed, 10, 15) for seed in range(PLACED // share)]
    groups["recall, 10 names, completion without chat template"] = [Case(text, _begins(code)) for text, code in raw]
    return groups


def knowledge_cases(template: Template, share: int) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for item in knowledge.all_items()[::share]:
        prompt = template.chat([{"role": "user", "content": item.questions[0]}])
        groups.setdefault(f"questions, {item.group}", []).append(Case(prompt, _contains(item.keyword)))
    return groups


def memory_cases(template: Template, share: int) -> dict[str, list[Case]]:
    """Chats in which users tell their name first and ask for it after another question."""
    cases = []
    for seed in range(PLACED // share):
        name = recall.make_facts(knowledge.random.Random(f"name {seed}"), 1, held=True)[0].name
        told = recall.turns(
            f"My name is {name}.", f"Nice to meet you, {name}.", "What is the capital of Italy?",
            "The capital of Italy is Rome.", "What is my name?",
        )  # fmt: skip
        cases.append(Case(template.chat(told), _contains(f"{name}.")))
    return {"chat, the user's name": cases}


def tool_cases(template: Template, share: int) -> dict[str, list[Case]]:
    calls, answers, declined = [], [], []
    for seed in range(100 // share):
        messages, offered, call, response, answer = tools.tool_prompt(seed)
        calls.append(Case(template.chat(messages, offered), _calls(call)))
        told = [*messages, tools.call_message(call), response]
        answers.append(Case(template.chat(told, offered), _equals(answer)))
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        declined.append(Case(template.chat(asked, offered), _contains("Paris")))
    return {"tools, right call": calls, "tools, right answer": answers, "tools, none needed": declined}


def measure(model: Path, quick: bool = False, vllm: bool = False) -> dict[str, Result]:
    """The number of right answers and of prompts, for every group of prompts."""
    share = 4 if quick else 1
    template = Template(model)
    answer = with_vllm(model) if vllm else with_transformers(model, template)
    groups: dict[str, list[Case]] = {}
    for make in (recall_cases, knowledge_cases, memory_cases, tool_cases):
        groups |= make(template, share)
    results: dict[str, Result] = {}
    for group, cases in groups.items():
        cases = sorted(cases, key=lambda case: len(case.prompt))
        answers = answer([case.prompt for case in cases], 60)
        wrong = [text for case, text in zip(cases, answers, strict=True) if not case.is_right(text)]
        results[group] = {"right": len(cases) - len(wrong), "of": len(cases), "wrong": wrong[:3]}
        print(f"{group}: {results[group]['right']} of {len(cases)}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model")
    parser.add_argument("--quick", action="store_true", help="ask a quarter of the prompts only")
    parser.add_argument("--vllm", action="store_true", help="let vLLM answer instead of transformers")
    parser.add_argument("--wrong", action="store_true", help="also print some wrong answers of each group")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    results = measure(options.model, options.quick, options.vllm)
    if options.wrong:
        print(json.dumps({group: result["wrong"] for group, result in results.items() if result["wrong"]}, indent=1))


if __name__ == "__main__":
    main()
