"""How many of an answer's tokens are reasoning. vLLM's parser counts them, in the way in which it counts them for the
`usage` of the same answer, so that the client is charged for as many as it is told.
"""

import logging

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

logger = logging.getLogger("baton.ingress")


class ReasoningCounter:
    """Counts for one chat. It parses the tokens anew: vLLM parses an answer that is not streamed after its session has
    ended, and one that is screened only as far as it has left.
    """

    def __init__(self, serving: OpenAIServingChat, request: ChatCompletionRequest) -> None:
        self._serving = serving
        self._request = request

    def count(self, prompt: list[int], answer: list[int]) -> int:
        """The number of tokens of one sequence that are reasoning; 0 without a reasoning parser, and if the parser
        fails.
        """
        serving, request = self._serving, self._request
        if not answer or serving.parser_cls is None or serving.parser_cls.reasoning_parser_cls is None:
            return 0
        tokenizer = serving.renderer.get_tokenizer()
        try:
            parser = serving._make_parser(request, tokenizer, serving._effective_chat_template_kwargs(request))
            if request.stream:
                text = tokenizer.decode(answer, skip_special_tokens=request.skip_special_tokens)
                parser.parse_delta(text, answer, request, prompt, finished=True)
            else:
                parser.set_prompt_token_ids(prompt)
            return int(parser.count_reasoning_tokens(answer))
        except Exception:  # the tokens that were generated are charged for in any case
            logger.exception("the reasoning of an answer cannot be counted")
            return 0
