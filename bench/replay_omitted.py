"""How much of SmolLM2's gradient detaching the prompt drops, by family of parameters.

Segments are as long as a response, so that no part of the prompt shares one with it: every response is detached from
the whole prompt, as LongStraw detaches it.
"""

from replay_cases import load_smollm2, question_case
from report import Row

from regrow import replay

CHUNK_TOKENS = 128


def run():
    model, tokenizer = load_smollm2()
    rows = []
    for prompt_tokens in (256, 2048):
        case = question_case(tokenizer, prompt_tokens=prompt_tokens, response_tokens=CHUNK_TOKENS)
        workload = f"omitted by detaching, SmolLM2 fp32, prompt {prompt_tokens:,} + 8 x 128"
        for part in replay.omitted_gradient(model, case.tree, case.objective, chunk_tokens=CHUNK_TOKENS):
            name = part.family.removeprefix("model.").replace("layers.*.", "").removesuffix(".weight")
            note = f"cosine {part.cosine:.4f}, norms {part.exact:.3g} exact, {part.detached:.3g} detached"
            rows.append(Row(workload, name, 100 * part.relative, "% of the norm", note=note))
    return rows
