"""Tokenization workers: validation, truncation and encoding of inputs, as in TEI's `core/src/tokenization.rs`."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from local.engines.tei.bert import TokenizedInput
from local.engines.tei.metrics import Metrics

#: Characters per token above which an input is refused without tokenizing it (recording embed/18).
CHARACTERS_PER_TOKEN = 250

Text = str | tuple[str, str] | list[int]


class ValidationError(Exception):
    """An input that is refused with 422; an empty one with 400."""

    def __init__(self, message: str, *, empty: bool = False) -> None:
        super().__init__(f"Input validation error: {message}")
        self.empty = empty


@dataclass(frozen=True)
class SimpleToken:
    """One token of /tokenize; `start` and `stop` are character offsets, None for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def _require_input(text: Text) -> None:
    if not text or text == ("", ""):
        raise ValidationError("`inputs` cannot be empty", empty=True)


def find_prompt(name: str, prompts: Mapping[str, str] | None) -> str:
    """The text of a named prompt of the Sentence Transformers configuration.

    Raises:
        ValidationError: with the text that the router gives at start and on a request.
    """
    if prompts is None:
        raise ValidationError(
            f"`default-prompt-name` is set to `{name}` but no prompts were found in the Sentence Transformers "
            f"configuration"
        )
    if name not in prompts:
        known = ", ".join(sorted(prompts))
        raise ValidationError(
            f"`default-prompt-name` is set to `{name}` but it was not found in the Sentence Transformers prompts. "
            f"Available prompts: [{known}]"
        )
    return prompts[name]


class Tokenization:
    """Runs tokenizers in `workers` threads; each thread has its own tokenizer because truncation is its state."""

    def __init__(
        self,
        path: Path,
        *,
        workers: int,
        max_input_length: int,
        prompts: Mapping[str, str] | None,
        default_prompt: str | None,
        metrics: Metrics,
    ) -> None:
        self._source = path.read_text(encoding="utf-8")
        self._prompts = prompts
        self._default_prompt = default_prompt
        self._max_input_length = max_input_length
        self._metrics = metrics
        self._per_thread = threading.local()
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tokenization")
        self._pool.submit(self._tokenizer).result()

    def _tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer | None = getattr(self._per_thread, "tokenizer", None)
        if tokenizer is None:
            tokenizer = Tokenizer.from_str(self._source)
            tokenizer.no_padding()
            self._per_thread.tokenizer = tokenizer
        return tokenizer

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return self._default_prompt or ""
        return find_prompt(name, self._prompts)

    async def encode(self, text: Text, *, truncate: bool, direction: str, prompt_name: str | None) -> TokenizedInput:
        """Token ids of an input, cut to the maximum length when `truncate` is set.

        Raises:
            ValidationError: empty, too long, or an unknown prompt.
        """
        _require_input(text)
        prompt = self._prompt(prompt_name)
        loop = asyncio.get_running_loop()
        encoding = await loop.run_in_executor(self._pool, self._encode, text, truncate, direction, prompt)
        self._metrics.observe("te_request_input_length", len(encoding.ids))
        return TokenizedInput(encoding.ids, encoding.type_ids)

    def _encode(self, text: Text, truncate: bool, direction: str, prompt: str) -> Encoding:
        limit = self._max_input_length
        characters = sum(map(len, text)) if isinstance(text, tuple) else len(text)
        if not truncate and not isinstance(text, list) and characters > limit * CHARACTERS_PER_TOKEN:
            raise ValidationError(
                f"`inputs` must have less than {limit * CHARACTERS_PER_TOKEN} characters. Given: {characters}"
            )
        tokenizer = self._tokenizer()
        ids = text if isinstance(text, list) else None
        if ids is not None:
            tokenizer.no_truncation()
            text = tokenizer.decode(ids, skip_special_tokens=False)
        if truncate:
            tokenizer.enable_truncation(limit, direction=direction)
        else:
            tokenizer.no_truncation()
        if isinstance(text, tuple):
            encoding = tokenizer.encode(*text)
        else:
            encoding = tokenizer.encode(prompt + str(text), add_special_tokens=ids is None)
        if len(encoding.ids) > limit:
            raise ValidationError(f"`inputs` must have less than {limit} tokens. Given: {len(encoding.ids)}")
        return encoding

    async def tokenize(self, text: str, *, add_special_tokens: bool, prompt_name: str | None) -> list[SimpleToken]:
        """The tokens of a text, never truncated.

        Raises:
            ValidationError: empty, or an unknown prompt.
        """
        _require_input(text)
        prompt = self._prompt(prompt_name)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._tokenize, prompt + text, add_special_tokens)

    def _tokenize(self, text: str, add_special_tokens: bool) -> list[SimpleToken]:
        tokenizer = self._tokenizer()
        tokenizer.no_truncation()
        encoding = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
        return [
            SimpleToken(id_, token, True, None, None)
            if special
            else SimpleToken(id_, text[start:stop], False, start, stop)
            for id_, token, special, (start, stop) in rows
        ]

    async def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids.

        Raises:
            ValidationError: no ids.
        """
        if not ids:
            raise ValidationError("`input_ids` cannot be empty", empty=True)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._decode, ids, skip_special_tokens)

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        tokenizer = self._tokenizer()
        tokenizer.no_truncation()
        return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
