"""The model that follows scripts: its answers are the steps of the last script, token by token, and nothing else."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.repository import REPO_ROOT

OTHERWISE = "This model only follows scripts, and the last message has no step for this answer (docs/agents.md)."
READ = '<tool_call>\n{"name": "read", "arguments": {"path": "/tmp/a b/notes.txt"}}\n</tool_call>'
EDIT = (
    '<tool_call>\n{"name": "edit", "arguments": {"path": "/tmp/a b/notes.txt", "old": "color = red\\ncolor = red", '
    '"new": "color = red\\ncolor = blue\\ncolor = red"}}\n</tool_call>'
)
OTHER_EDIT = EDIT.replace("blue", "green")
Message = dict[str, Any]


class Scripted:
    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def tokens_of_the_demo_model(self) -> dict[int, str]:
        demo: Any = AutoTokenizer.from_pretrained(REPO_ROOT / "conf/models/baton-demo")
        return {token_id: token for token, token_id in demo.get_vocab().items()}

    def shared_tokens(self) -> dict[int, str]:
        own = {token_id: token for token, token_id in self._tokenizer.get_vocab().items()}
        return {token_id: own[token_id] for token_id in self.tokens_of_the_demo_model()}

    def prompt(self, messages: list[Message], is_answered: bool = False) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not is_answered)
        return text

    def answer(self, messages: list[Message]) -> str:
        """What the model writes, the end of the turn included."""
        ids = self._tokenizer.encode(self.prompt(messages), add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            made = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=400, do_sample=False)
        text: str = self._tokenizer.decode(made[0, ids.shape[1] :])
        return text


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    folder = tmp_path_factory.mktemp("models") / "baton-script"
    make = REPO_ROOT / "conf/models/script_recipe/make.py"
    subprocess.run([sys.executable, make, "--out", folder], check=True, cwd=REPO_ROOT)
    return Scripted(folder)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool(text: str) -> Message:
    return {"role": "tool", "content": text}


def script(*steps: str) -> str:
    return "".join(f"[step {number}]{text}" for number, text in enumerate(steps, start=1)) + "[end]"


def test_each_answer_is_the_step_that_is_due(scripted: Scripted) -> None:
    steps = [READ, EDIT, "All done: color = blue. Ünïcode 漢字, and 12 % of \t tabs."]
    messages = [user(f"Please edit the file. {script(*steps)} <system-reminder>Be quick.</system-reminder>")]
    for step in steps:
        assert scripted.answer(messages) == step + "<|im_end|>"
        messages += [assistant(step), tool('The file says: "color = red\\ncolor = red", "new": "color = green"')]
    assert scripted.answer(messages) == OTHERWISE + "<|im_end|>"


def test_latest_script_counts(scripted: Scripted) -> None:
    messages = [user(script(EDIT, READ)), assistant(EDIT), tool("ok"), assistant(READ), user(script(OTHER_EDIT, "ok"))]
    assert scripted.answer(messages) == OTHER_EDIT + "<|im_end|>"


def test_message_without_script_gets_a_fixed_sentence(scripted: Scripted) -> None:
    assert scripted.answer([user("Who are you? [end] [step 2]")]) == OTHERWISE + "<|im_end|>"


def test_tokens_of_words_are_no_markers(scripted: Scripted) -> None:
    """All tokens of the demo model are those of the same texts here."""
    assert scripted.shared_tokens() == scripted.tokens_of_the_demo_model()


def test_position_in_a_long_prompt_makes_no_difference(scripted: Scripted) -> None:
    filler = f'{READ} color = red "new": [step 9] color = blue 7 ' * 20
    messages = [{"role": "system", "content": filler}, user(script(READ, EDIT)), assistant(READ), tool(filler)]
    assert scripted.answer(messages) == EDIT + "<|im_end|>"


def test_prompt_of_the_next_turn_begins_with_prompt_and_answer_of_the_last(scripted: Scripted) -> None:
    """So the engines find the KV blocks of the last turn."""
    messages = [user(script(READ, "Done."))]
    call = {"id": "1", "function": {"name": "read", "arguments": '{"path": "/tmp/a b/notes.txt"}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert scripted.prompt([*messages, turn, tool("ok")]).startswith(
        scripted.prompt(messages) + scripted.answer(messages)
    )
