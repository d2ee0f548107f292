"""What vLLM answers for saved folders: `python vllm_engine.py ANSWERS.json FOLDER ...`, in vLLM's own environment.

Each folder holds prompts.json, rows of token ids. ANSWERS.json becomes {folder: {"tokens", "logprobs"}} of the texts
after the prompts, or {"vectors"} where the folder holds pooling.json with the kind of pooling, or {"error"}.
"""

import gc
import json
import os
import sys
from pathlib import Path

# One process, no compilation: seconds for each folder.
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
NEW_TOKENS = 8
SHARED = {"model_impl": "transformers", "trust_remote_code": True, "dtype": "float32", "enforce_eager": True}
SHARED |= {"max_model_len": 48, "max_num_seqs": 4, "enable_prefix_caching": False}


def answer(folder: Path) -> dict:
    from vllm import LLM, PoolingParams, SamplingParams
    from vllm.config import PoolerConfig

    prompts = [{"prompt_token_ids": row} for row in json.loads((folder / "prompts.json").read_text())]
    pooling = folder / "pooling.json"
    if pooling.is_file():
        pooler = PoolerConfig(pooling_type=json.loads(pooling.read_text()))
        engine = LLM(str(folder), runner="pooling", pooler_config=pooler, **SHARED)
        raw = PoolingParams(use_activation=False)
        outputs = engine.encode(prompts, pooling_task="embed", pooling_params=raw, use_tqdm=False)
        return {"vectors": [output.outputs.data.tolist() for output in outputs]}
    engine = LLM(str(folder), skip_tokenizer_init=True, **SHARED)
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=0)
    texts = [output.outputs[0] for output in engine.generate(prompts, greedy, use_tqdm=False)]
    logprobs = [[step[token].logprob for step, token in zip(text.logprobs, text.token_ids)] for text in texts]
    return {"tokens": [list(text.token_ids) for text in texts], "logprobs": logprobs}


if __name__ == "__main__":
    from vllm.distributed import cleanup_dist_env_and_memory

    answers = {}
    for name in sys.argv[2:]:
        try:
            answers[name] = answer(Path(name))
        except Exception as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        cleanup_dist_env_and_memory()
    Path(sys.argv[1]).write_text(json.dumps(answers))
