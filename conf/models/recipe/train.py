"""The training: batches of documents, the optimisers, the schedule, and a probe of recall along the way."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

import chat
import corpus
import first
import recall
from chat import END_OF_TEXT, SPECIAL_TOKENS, TOOL_TOKENS, TURN_END, Segment

THREADS = 2
STEP_TOKENS = 4096
MICRO_TOKENS = 4096
SPREAD = 1.25  # the longest sequence of a batch has at most this many times the length of its shortest
MUON_RATE = 0.005
ADAM_RATE = 0.0015
BUILT_RATE = (
    0.1  # of the Muon rate: as fast as the rest, training would wear down the built-in heads before it uses them
)
WARMUP = 40
PROBE_EVERY = 100
ASSOCIATIONS = 0.05  # the part of the sequences that are random keys and values

Sequence = tuple[list[int], list[bool]]  # token ids, and whether each of them is learnt


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    learnt: Tensor


def new_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config)
    first.build(model)
    return model


def encode(tokenizer: Tokenizer, document: list[Segment]) -> Sequence:
    """The document's tokens; a token is learnt if it begins inside a learnt segment."""
    encoding = tokenizer.encode("".join(text for text, _ in document))
    learnt_chars = [learnt for text, learnt in document for _ in text]
    return encoding.ids, [learnt_chars[start] for start, _ in encoding.offsets]


def associations(rng: random.Random, tokenizer: Tokenizer) -> Sequence:
    """Random keys and values with a fixed gap between them, told in two orders: the second values can be learnt.

    Such texts show in the densest way what recall is: to find an earlier key, and to go on with what followed it.
    """
    words = range(len(SPECIAL_TOKENS + TOOL_TOKENS), tokenizer.get_vocab_size())
    digits = [tokenizer.token_to_id(f"{number:02}") for number in range(100)]
    values = digits if rng.random() < 0.3 else words
    gap, end = ([rng.choice(words) for _ in range(rng.randint(0, 2))] for _ in range(2))
    longest = rng.randint(1, 4)
    entries = []
    for _ in range(rng.randint(3, 20)):
        key = [rng.choice(words) for _ in range(rng.randint(1, 3))]
        entries.append((key + gap, [rng.choice(values) for _ in range(longest)]))
    ids: list[int] = []
    learnt: list[bool] = []
    for told, entry in enumerate(entries + rng.sample(entries, len(entries))):
        ids += entry[0] + entry[1] + end
        learnt += [False] * len(entry[0]) + [told >= len(entries)] * longest + [False] * len(end)
    return ids, learnt


@dataclass(frozen=True)
class Stage:
    """A part of the training with a mix of documents and a learning-rate schedule of its own."""

    name: str
    steps: int
    shares: dict[corpus.Kind, float]
    rate: float
    """Peak learning rate of the stage, as a share of the full learning rates."""
    grows: bool
    """Whether the documents are short at the beginning of the stage. At the end of a stage they are always longest."""

    def size_at(self, progress: float) -> float:
        if progress > 0.75:
            return 1.5
        return min(1.0, 0.1 + progress / 0.5) if self.grows else 1.0

    def rate_at(self, step: int) -> float:
        """A short warm-up, full for 40 % of the steps, then linear to zero."""
        return self.rate * min(1.0, (step + 1) / WARMUP, (1.0 - step / self.steps) / 0.6)


STAGES = (
    Stage("first", 1500, corpus.SHARES, rate=1.0, grows=True),
    Stage("late", 500, corpus.LATE_SHARES, rate=0.5, grows=False),
)


def sequences(tokenizer: Tokenizer, stage: Stage, step: int) -> Iterator[Sequence]:
    """The sequences of one step, with at most STEP_TOKENS tokens."""
    seed = f"{step}" if stage.grows else f"{stage.name} {step}"
    rng = random.Random(f"associations {seed}")
    stream = corpus.documents(seed, stage.size_at(step / stage.steps), stage.shares)
    total = 0
    while True:
        is_random = rng.random() < ASSOCIATIONS
        sequence = associations(rng, tokenizer) if is_random else encode(tokenizer, next(stream))
        total += len(sequence[0])
        if total > STEP_TOKENS:
            return
        yield sequence


def padded(group: list[Sequence], pad: int) -> Batch:
    length = max(len(ids) for ids, _ in group)
    ids = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in group])
    learnt = torch.tensor([learnt + [False] * (length - len(learnt)) for _, learnt in group])
    return Batch(ids, learnt)


def batches(tokenizer: Tokenizer, found: list[Sequence]) -> list[Batch]:
    """The sequences in batches of similar lengths."""
    pad = tokenizer.token_to_id(END_OF_TEXT)
    groups: list[list[Sequence]] = [[]]
    for sequence in sorted(found, key=lambda s: len(s[0])):
        group, length = groups[-1], len(sequence[0])
        if group and ((len(group) + 1) * length > MICRO_TOKENS or length > SPREAD * len(group[0][0]) + 8):
            groups.append([])
        groups[-1].append(sequence)
    return [padded(group, pad) for group in groups]


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """The summed loss of the learnt tokens. Padding stands on the right, so causal attention needs no mask."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state
        wanted = batch.learnt[:, 1:]
        logits = model.lm_head(hidden[wanted])
    return torch.nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][wanted], reduction="sum")


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, slower where first.py has built something; AdamW for the rest."""
    built = [p for layer in model.model.layers[: first.LAYERS] for p in layer.self_attn.parameters() if p.ndim == 2]
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2 and not any(p is q for q in built)]
    others = [p for p in model.parameters() if not any(p is q for q in (*built, *matrices))]
    groups = [{"params": matrices, "lr": MUON_RATE}, {"params": built, "lr": MUON_RATE * BUILT_RATE}]
    return [
        torch.optim.Muon(groups, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def probe(model: Qwen3ForCausalLM, tokenizer: Tokenizer, count: int = 48) -> float:
    """The share of held-out recall answers in which every token is the model's first choice."""
    found = []
    for seed in range(count):
        messages, code = recall.recall_prompt(seed, 8, 10, recall.PLACINGS[seed % len(recall.PLACINGS)])
        name = messages[-1]["content"].rsplit(" of ", 1)[1].rstrip("?")
        answer = {"role": "assistant", "content": f"The code of {name} is {code}."}
        told = [(text, False) for text, _ in chat.segments(messages)]
        found.append(encode(tokenizer, told + chat.segments([answer])))
    batch = padded(found, tokenizer.token_to_id(END_OF_TEXT))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first = model(input_ids=batch.ids[:, :-1], use_cache=False).logits.argmax(-1)
    right = (first == batch.ids[:, 1:]) | ~batch.learnt[:, 1:]
    return right.all(1).float().mean().item()


def train_step(model: Qwen3ForCausalLM, chosen: list[torch.optim.Optimizer], found: list[Batch]) -> float:
    """One step of all optimisers; returns the mean loss per learnt token."""
    learnt = sum(int(batch.learnt[:, 1:].sum()) for batch in found)
    total = 0.0
    for batch in found:
        loss = loss_of(model, batch)
        (loss / learnt).backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in chosen:
        optimizer.step()
        optimizer.zero_grad()
    return total / learnt


def set_rates(chosen: list[torch.optim.Optimizer], part: float) -> None:
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_lr", group["lr"]) * part


def run(stage: Stage, model: Qwen3ForCausalLM, tokenizer: Tokenizer) -> None:
    """Train the model in place. It ends with weights as precise as they are saved: the next stage can be run alone."""
    chosen = optimizers(model)
    started = time.monotonic()
    recent = 0.0
    for step in range(stage.steps):
        set_rates(chosen, stage.rate_at(step))
        loss = train_step(model, chosen, batches(tokenizer, list(sequences(tokenizer, stage, step))))
        recent = loss if step == 0 else 0.9 * recent + 0.1 * loss
        if (step + 1) % 20 == 0 or step + 1 == stage.steps:
            left = (time.monotonic() - started) / (step + 1) * (stage.steps - step - 1) / 60
            seen = f", recall {probe(model, tokenizer):.0%}" if (step + 1) % PROBE_EVERY == 0 else ""
            done = f"{stage.name} stage, step {step + 1}/{stage.steps}"
            print(f"{done}, loss {recent:.3f}{seen}, {left:.1f} min left", flush=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def prepare() -> None:
    """Seed all random numbers, so that the same stages on the same machine give the same model."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)


def train(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """A model trained from scratch."""
    prepare()
    model = new_model(tokenizer)
    for stage in STAGES:
        run(stage, model, tokenizer)
    return model
